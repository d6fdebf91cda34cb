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

-- Not declared: does not exist for an analyst.
CREATE TABLE secrets (id int, age int);

-- Public.
CREATE TABLE states (code text, region text, population bigint);
INSERT INTO states VALUES ('CA', 'west', 39000000), ('NY', 'east', 19500000), ('TX', 'south', 30500000);

CREATE TABLE kinds (kind text, label text, base_fee numeric(10, 2), rank int);
INSERT INTO kinds VALUES ('checkup', 'Check-up', 50.00, 1), ('lab', 'Laboratory', 20.50, 2), ('surgery', 'Surgery', 400.00, 3);

CREATE TABLE holidays (day date, title text);
INSERT INTO holidays VALUES ('2021-01-01', 'New Year'), ('2021-05-01', 'May Day'), ('2022-01-01', 'New Year'), ('2022-12-25', NULL);
