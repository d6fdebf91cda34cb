// One step after the other, each a line of output: its name and what it saw. The address is in PGHOST and its kin.
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");

const COUNT = "SELECT count(*) AS n FROM people";
const STATES = "SELECT state, count(*) AS n FROM people WHERE age > 40 GROUP BY state ORDER BY state";
const OLDER = "SELECT count(*) AS n FROM people WHERE age > $1";
const ENDLESS =
  "SELECT (SELECT count(*) FROM people) AS n, (SELECT count(*) FROM " +
  Array.from({ length: 30 }, (_, i) => `states s${i}`).join(" CROSS JOIN ") + ") AS endless";

const rows = (result) => result.rows.map((row) => Object.values(row).join("|")).join(" ");
const code = async (promise) => promise.then(() => "no error", (error) => `${error.code} at ${error.position}`);

const steps = {
  count: async (client) => rows(await client.query(COUNT)),
  states: async (client) => rows(await client.query(STATES)),
  fields: async (client) => (await client.query(STATES)).fields.map((f) => `${f.name} ${f.dataTypeID}`).join(" "),
  parameter: async (client) => rows(await client.query(OLDER, [65])),
  "several statements": async (client) => (await client.query(`SELECT 1; ${COUNT}; SELECT 2`)).map(rows).join(" "),
  "named statement": async (client) => {
    const found = [];
    for (const age of [65, 20, 65]) found.push(rows(await client.query({ name: "older", text: OLDER, values: [age] })));
    return found.join(" ");
  },
  binary: async (client) => rows(await client.query({ text: OLDER, values: [65], binary: true })),
  cursor: async (client) => {
    const cursor = client.query(new Cursor(STATES));
    const found = [];
    for (let part = await cursor.read(2); part.length; part = await cursor.read(2)) found.push(part.length);
    await cursor.close();
    return `${found.join(" ")} then ${rows(await client.query(COUNT))}`;
  },
  transaction: async (client) => {
    await client.query("BEGIN");
    await client.query(COUNT);
    const failed = await code(client.query("SELECT count(*) FROM people WHERE nothing = 1"));
    const aborted = await code(client.query(COUNT));
    await client.query("ROLLBACK");
    return `${failed} then ${aborted} then ${rows(await client.query(COUNT))}`;
  },
  "many at once": async (client) => (await Promise.all([1, 2, 3].map(() => client.query(COUNT)))).map(rows).join(" "),
  cancel: async (client) => {
    const other = new Client();
    await other.connect();
    const running = code(client.query(ENDLESS));
    const timer = setInterval(() => other.query("SELECT pg_cancel_backend($1)", [client.processID]), 300);
    const found = await running;
    clearInterval(timer);
    await other.query("SELECT 1");
    await other.end();
    return `${found.split(" ")[0]} then ${rows(await client.query(COUNT))}`;
  },
  instants: async (client) => {
    // A Date is written in the zone of the process, with its offset; what comes back is an instant as well.
    const months =
      "SELECT date_trunc('month', seen::timestamptz) AS month, count(*) AS n FROM visits" +
      " WHERE seen::timestamptz >= $1 AND seen::timestamptz < $2 GROUP BY 1 HAVING count(*) > 0 ORDER BY 1";
    await client.query("SET TimeZone = 'Pacific/Auckland'");
    const found = await client.query(months, [
      new Date("2021-06-30T12:00:00Z"),
      new Date("2021-10-31T11:00:00Z"),
    ]);
    const epoch = await client.query("SELECT to_timestamp(0) AS epoch, count(*) > 0 AS some FROM people");
    return `${found.rows.map((row) => `${row.month.toISOString()} ${row.n}`).join(" ")} ${epoch.rows[0].epoch.getTime()}`;
  },
  refusal: async (client) => code(client.query("SELECT age FROM people")),
};

async function pool() {
  const made = new Pool({ max: 3, statement_timeout: 7000, application_name: "pool" });
  const found = await Promise.all([1, 2, 3, 4, 5].map(() => made.query(COUNT)));
  await made.end();
  return found.map(rows).join(" ");
}

async function main() {
  for (const [name, step] of Object.entries(steps)) {
    const client = new Client();
    await client.connect();
    console.log(`${name}: ${await step(client).catch((error) => `failed with ${error}`)}`);
    await client.end();
  }
  console.log(`pool: ${await pool()}`);
}

main();
