-- One schema for DuckDB and PostgreSQL: only names of types that both know.

-- One row per person, and the engine enforces it.
CREATE TABLE people (
    id int PRIMARY KEY,
    name text,             -- not declared in any policy
    age int,
    sex text,
    state text,
    city text,             -- its values are not declared: keys are unknown
    income float8,
    height numeric(5, 2),
    children smallint,
    points bigint,
    debt float8,           -- declared without bounds
    smoker boolean,        -- NULL is a declared key
    joined date,
    born timestamp,
    note text
);

-- Many rows per person.
CREATE TABLE visits (
    id int PRIMARY KEY,
    patient_id int,
    kind text,
    clinic text,           -- unknown keys
    fee numeric(10, 2),
    score float8,
    minutes int NOT NULL,  -- the only column that is never NULL, beside the keys
    urgent boolean,
    day date,
    seen timestamp
);

-- One row per person is declared, but nothing enforces it.
CREATE TABLE surveys (
    person_id int,
    mood int,
    hours float8,
    answer text
);

-- Names that need quotation marks; a limit on groups per person.
CREATE TABLE "Gifts" (
    giver int,
    "Amount" int,
    "select" text,
    shop text
);

-- Whose a row is says the visit it belongs to.
CREATE TABLE items (
    visit_id int,          -- not declared as a column: it can be compared and nothing else
    line int,
    article text,
    price numeric(8, 2),
    quantity int,
    weight float8,
    PRIMARY KEY (visit_id, line)
);

-- Two steps away from its owner, the first by a key of two columns.
CREATE TABLE remarks (
    visit int,
    line int,
    topic text,
    words int
);

-- Not declared: does not exist for an analyst.
CREATE TABLE secrets (id int, age int);

-- Public.
CREATE TABLE states (code text PRIMARY KEY, region text, population bigint);
INSERT INTO states VALUES ('CA', 'west', 39000000), ('NY', 'east', 19500000), ('TX', 'south', 30500000);

CREATE TABLE kinds (kind text, label text, base_fee numeric(10, 2), rank int);
INSERT INTO kinds VALUES ('checkup', 'Check-up', 50.00, 1), ('lab', 'Laboratory', 20.50, 2), ('surgery', 'Surgery', 400.00, 3);

-- Several rows for each kind.
CREATE TABLE tariffs (kind text, year int, factor numeric(4, 2), PRIMARY KEY (kind, year));
INSERT INTO tariffs VALUES ('checkup', 2021, 1.00), ('checkup', 2022, 1.10), ('lab', 2021, 0.90), ('lab', 2022, 1.20);

CREATE TABLE holidays (day date, title text);
INSERT INTO holidays VALUES ('2021-01-01', 'New Year'), ('2021-05-01', 'May Day'), ('2022-01-01', 'New Year'), ('2022-12-25', NULL);
