#!/bin/sh
# Runs once, when the database is made: a made-up clinic, and a role that may only read it.
set -eu
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --set password="$READER_PASSWORD" <<'SQL'
CREATE TABLE patients (
    id integer PRIMARY KEY,
    age integer NOT NULL CHECK (age BETWEEN 0 AND 110),
    state text NOT NULL CHECK (state IN ('CA', 'NY', 'TX')),
    income numeric(10, 2),
    joined date
);
INSERT INTO patients
SELECT i, 18 + i * 37 % 73, (ARRAY['CA', 'NY', 'TX'])[1 + i % 3], i::bigint * 7919 % 120000, date '2018-01-01' + i % 2500
FROM generate_series(1, 50000) AS i;

CREATE TABLE visits (
    id integer PRIMARY KEY,
    patient_id integer NOT NULL REFERENCES patients,
    kind text NOT NULL CHECK (kind IN ('checkup', 'lab', 'surgery')),
    fee numeric(8, 2),
    seen timestamptz
);
INSERT INTO visits
SELECT i, 1 + i * 31 % 50000, (ARRAY['checkup', 'lab', 'surgery'])[1 + i % 3], 10 + i % 900,
       timestamptz '2020-01-01 00:00+00' + i % 50000 * interval '1 hour'
FROM generate_series(1, 200000) AS i;
ANALYZE;

CREATE ROLE dpsql LOGIN PASSWORD :'password';
GRANT USAGE ON SCHEMA public TO dpsql;
GRANT SELECT ON patients, visits TO dpsql;
SQL
