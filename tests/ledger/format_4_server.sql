CREATE SCHEMA dpsql_ledger;
SET search_path = dpsql_ledger, pg_catalog;


CREATE TABLE ledger (
    id text COLLATE "C" NOT NULL,
    dataset text COLLATE "C" NOT NULL,
    accounting text COLLATE "C" NOT NULL,
    created text COLLATE "C" NOT NULL
);

-- One row per charge, numbered without gaps; `hash` covers the row and the hash before it.
CREATE TABLE charges (
    number bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    sql text COLLATE "C" NOT NULL,
    dataset_loss bigint NOT NULL CHECK (dataset_loss >= 0),
    dataset_delta bigint NOT NULL CHECK (dataset_delta >= 0),
    user_loss bigint NOT NULL CHECK (user_loss >= dataset_loss),
    user_delta bigint NOT NULL CHECK (user_delta >= dataset_delta),
    hash bytea NOT NULL
);
CREATE INDEX charges_by_user ON charges ("user");

-- Which charge first paid for an answer, per user.
CREATE TABLE paid (
    key bytea NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    charge bigint NOT NULL REFERENCES charges,
    PRIMARY KEY (key, "user")
);

-- The sums of `charges`.
CREATE TABLE accounts (
    subject text COLLATE "C" PRIMARY KEY,
    loss bigint NOT NULL CHECK (loss >= 0),
    delta bigint NOT NULL CHECK (delta >= 0)
);

-- Every change of a limit; the newest row of a subject is in force. NULL: not known before, or no longer.
CREATE TABLE limits (
    number bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    old_loss bigint,
    old_delta bigint,
    new_loss bigint,
    new_delta bigint
);
CREATE INDEX limits_by_subject ON limits (subject);

CREATE TABLE answers (
    key bytea PRIMARY KEY,
    created text COLLATE "C" NOT NULL,
    payload bytea NOT NULL
);


-- What was asked and not answered, numbered without gaps.
CREATE TABLE refusals (
    number bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    "user" text COLLATE "C" NOT NULL,
    sql text COLLATE "C" NOT NULL,
    sqlstate text COLLATE "C" NOT NULL,
    message text COLLATE "C" NOT NULL
);
CREATE INDEX refusals_by_user ON refusals ("user", at);


-- From where the ledger came and where it went, numbered without gaps.
CREATE TABLE moves (
    number bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL CHECK (event IN ('arriving', 'arrived', 'departed')),
    place text COLLATE "C" NOT NULL
);

ALTER TABLE charges ADD COLUMN dataset_pure bigint CHECK (dataset_pure IS NULL OR (dataset_pure >= 0));
ALTER TABLE charges ADD COLUMN user_pure bigint CHECK (user_pure IS NULL OR (user_pure >= 0));
ALTER TABLE accounts ADD COLUMN pure bigint CHECK (pure IS NULL OR (pure >= 0));
ALTER TABLE limits ADD COLUMN old_pure bigint;
ALTER TABLE limits ADD COLUMN new_pure bigint;


-- Which attempt made a charge: one whose acknowledgement was lost is recognised, and not made twice.
CREATE TABLE attempts (
    id uuid PRIMARY KEY,
    charge bigint NOT NULL REFERENCES charges
);


CREATE TABLE formats (format bigint PRIMARY KEY);
INSERT INTO formats VALUES (4);


CREATE OR REPLACE FUNCTION only_added_to() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; RETURN NEW; END $$;

CREATE OR REPLACE FUNCTION only_growing() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN IF TG_OP = 'DELETE' OR NEW.subject <> OLD.subject OR NEW.loss < OLD.loss OR NEW.delta < OLD.delta OR NEW.pure < OLD.pure OR (OLD.pure IS NULL AND NEW.pure IS NOT NULL AND (OLD.loss > 0 OR OLD.delta > 0)) OR (NEW.pure = OLD.pure AND (NEW.loss > OLD.loss OR NEW.delta > OLD.delta)) THEN RAISE EXCEPTION 'nothing is refunded'; END IF; RETURN NEW; END $$;

CREATE OR REPLACE FUNCTION end_with_departure() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN IF (SELECT event FROM moves ORDER BY number DESC LIMIT 1) = 'departed' THEN RAISE EXCEPTION 'the ledger was moved'; END IF; RETURN NEW; END $$;

CREATE OR REPLACE FUNCTION charges_in_order() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN IF NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charges) THEN RAISE EXCEPTION 'charges is append-only'; END IF; RETURN NEW; END $$;

CREATE OR REPLACE FUNCTION refusals_in_order() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN IF NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM refusals) THEN RAISE EXCEPTION 'refusals is append-only'; END IF; RETURN NEW; END $$;

CREATE OR REPLACE FUNCTION moves_in_order() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, dpsql_ledger, pg_temp
AS $$ BEGIN IF NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM moves) THEN RAISE EXCEPTION 'moves is append-only'; END IF; RETURN NEW; END $$;

CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON charges FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON paid FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON limits FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON refusals FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON moves FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON attempts FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON formats FOR EACH ROW EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION only_growing();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON charges FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON paid FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON limits FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON refusals FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON moves FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON attempts FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON formats FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER never_emptied BEFORE TRUNCATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION only_added_to();
CREATE TRIGGER in_order BEFORE INSERT ON charges FOR EACH ROW EXECUTE FUNCTION charges_in_order();
CREATE TRIGGER in_order BEFORE INSERT ON refusals FOR EACH ROW EXECUTE FUNCTION refusals_in_order();
CREATE TRIGGER in_order BEFORE INSERT ON moves FOR EACH ROW EXECUTE FUNCTION moves_in_order();
CREATE TRIGGER end_with_departure BEFORE INSERT ON charges FOR EACH ROW EXECUTE FUNCTION end_with_departure();

REVOKE ALL ON SCHEMA dpsql_ledger FROM PUBLIC;
REVOKE ALL ON ledger, charges, paid, accounts, limits, answers, refusals, moves, attempts, formats FROM PUBLIC;

INSERT INTO ledger VALUES ('5f7968413b9e419c98698dddbb2d1088', 'people', 'zcdp', '2026-11-18T15:55:22.305847+00:00');
INSERT INTO charges VALUES ('1', '2026-11-18T15:55:22.335836+00:00', 'alice', 'SELECT COUNT(*) FROM people WHERE age > 18', '3', '0', '3', '0', E'\\xbf12d2662e1342666bb800e175d12c655cae7df0f8fe65549445ab6e951e3251', '2', '2');
INSERT INTO charges VALUES ('2', '2026-11-18T15:55:22.342647+00:00', 'alice', 'SELECT town, COUNT(*) FROM people GROUP BY town', '10', '1', '10', '1', E'\\xc4a21ec1b8819faf8270c04cd667a278a2c260eaeb2d4c56a99b1cdb586f5eff', NULL, NULL);
INSERT INTO charges VALUES ('3', '2026-11-18T15:55:22.351886+00:00', 'bob', 'SELECT AVG(age) FROM people', '5', '0', '15', '1', E'\\x8832266ec3118063b697ad521410635e81a5beb996391732ccf9ea2ca4e324e2', NULL, NULL);
INSERT INTO paid VALUES (E'\\x0000000000000000000000000000000000000000000000000000000000000001', 'alice', '1');
INSERT INTO paid VALUES (E'\\x0000000000000000000000000000000000000000000000000000000000000002', 'alice', '2');
INSERT INTO paid VALUES (E'\\x0000000000000000000000000000000000000000000000000000000000000002', 'bob', '3');
INSERT INTO paid VALUES (E'\\x0000000000000000000000000000000000000000000000000000000000000003', 'bob', '3');
INSERT INTO accounts VALUES ('dataset', '18', '1', NULL);
INSERT INTO accounts VALUES ('user:alice', '13', '1', NULL);
INSERT INTO accounts VALUES ('user:bob', '15', '1', NULL);
INSERT INTO limits VALUES ('1', '2026-11-18T15:55:22.328135+00:00', 'dataset', NULL, NULL, '100', '10', NULL, '60');
INSERT INTO limits VALUES ('2', '2026-11-18T15:55:22.328510+00:00', 'user:alice', NULL, NULL, '60', '10', NULL, NULL);
INSERT INTO limits VALUES ('3', '2026-11-18T15:55:22.328695+00:00', 'user:bob', NULL, NULL, '9223372036854775807', '9223372036854775807', NULL, NULL);
INSERT INTO answers VALUES (E'\\x0000000000000000000000000000000000000000000000000000000000000002', '2026-11-18T15:55:22.350751+00:00', E'\\x616e20616e73776572');
INSERT INTO refusals VALUES ('1', '2026-11-18T15:55:22.362486+00:00', 'bob', 'SELECT name FROM people', '42501', 'no');
INSERT INTO attempts VALUES ('3a3c0fb8-2237-474d-b5ee-9cd9d0a14ce6', '1');
INSERT INTO attempts VALUES ('23161e85-028d-4dfe-860a-d627472b8cf5', '2');
INSERT INTO attempts VALUES ('c7ffc52e-d7e9-4c2d-9bc1-40abf30e9ecd', '3');
