PRAGMA application_id = 1685091185;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE accounts (
    subject TEXT PRIMARY KEY,
    loss INTEGER NOT NULL CHECK (typeof(loss) = 'integer' AND loss >= 0),
    delta INTEGER NOT NULL CHECK (typeof(delta) = 'integer' AND delta >= 0)
, pure INTEGER CHECK (pure IS NULL OR (typeof(pure) = 'integer' AND pure >= 0))) WITHOUT ROWID;
INSERT INTO "accounts" VALUES('dataset',18,1,NULL);
INSERT INTO "accounts" VALUES('user:alice',13,1,NULL);
INSERT INTO "accounts" VALUES('user:bob',15,1,NULL);
CREATE TABLE answers (
    key BLOB PRIMARY KEY,
    created TEXT NOT NULL,
    payload BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO "answers" VALUES(X'0000000000000000000000000000000000000000000000000000000000000002','2026-11-18T15:55:08.106089+00:00',X'616E20616E73776572');
CREATE TABLE charges (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    "user" TEXT NOT NULL,
    sql TEXT NOT NULL,
    dataset_loss INTEGER NOT NULL CHECK (typeof(dataset_loss) = 'integer' AND dataset_loss >= 0),
    dataset_delta INTEGER NOT NULL CHECK (typeof(dataset_delta) = 'integer' AND dataset_delta >= 0),
    user_loss INTEGER NOT NULL CHECK (typeof(user_loss) = 'integer' AND user_loss >= dataset_loss),
    user_delta INTEGER NOT NULL CHECK (typeof(user_delta) = 'integer' AND user_delta >= dataset_delta),
    hash BLOB NOT NULL
, dataset_pure INTEGER CHECK (dataset_pure IS NULL OR (typeof(dataset_pure) = 'integer' AND dataset_pure >= 0)), user_pure INTEGER CHECK (user_pure IS NULL OR (typeof(user_pure) = 'integer' AND user_pure >= 0)));
INSERT INTO "charges" VALUES(1,'2026-11-18T15:55:08.094525+00:00','alice','SELECT COUNT(*) FROM people WHERE age > 18',3,0,3,0,X'CD99C77DD94650FB6D7137B63F4A74327664F90C9EA97E12D0D63901FDDB3404',2,2);
INSERT INTO "charges" VALUES(2,'2026-11-18T15:55:08.102070+00:00','alice','SELECT town, COUNT(*) FROM people GROUP BY town',10,1,10,1,X'27BB8C973A3D6F00FAC957314C7D3AB4768D53B31ADDC24029816F8082F2D9E6',NULL,NULL);
INSERT INTO "charges" VALUES(3,'2026-11-18T15:55:08.106416+00:00','bob','SELECT AVG(age) FROM people',5,0,15,1,X'A01EC753B2EF63E16A52FE9FB09E078A52D18C7F8E886515A36E3D87E978C907',NULL,NULL);
CREATE TABLE ledger (
    id TEXT NOT NULL,
    dataset TEXT NOT NULL,
    accounting TEXT NOT NULL,
    created TEXT NOT NULL
);
INSERT INTO "ledger" VALUES('ca3cbd76a5c54e36837e9642298e46f8','people','zcdp','2026-11-18T15:55:08.023531+00:00');
CREATE TABLE limits (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    subject TEXT NOT NULL,
    old_loss INTEGER,
    old_delta INTEGER,
    new_loss INTEGER,
    new_delta INTEGER
, old_pure INTEGER, new_pure INTEGER);
INSERT INTO "limits" VALUES(1,'2026-11-18T15:55:08.074801+00:00','dataset',NULL,NULL,100,10,NULL,60);
INSERT INTO "limits" VALUES(2,'2026-11-18T15:55:08.074847+00:00','user:alice',NULL,NULL,60,10,NULL,NULL);
INSERT INTO "limits" VALUES(3,'2026-11-18T15:55:08.074857+00:00','user:bob',NULL,NULL,9223372036854775807,9223372036854775807,NULL,NULL);
CREATE TABLE moves (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    event TEXT NOT NULL CHECK (event IN ('arriving', 'arrived', 'departed')),
    place TEXT NOT NULL
);
CREATE TABLE paid (
    key BLOB NOT NULL,
    "user" TEXT NOT NULL,
    charge INTEGER NOT NULL REFERENCES charges,
    PRIMARY KEY (key, "user")
) WITHOUT ROWID;
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000001','alice',1);
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000002','alice',2);
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000002','bob',3);
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000003','bob',3);
CREATE TABLE refusals (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    "user" TEXT NOT NULL,
    sql TEXT NOT NULL,
    sqlstate TEXT NOT NULL,
    message TEXT NOT NULL
);
INSERT INTO "refusals" VALUES(1,'2026-11-18T15:55:08.109989+00:00','bob','SELECT name FROM people','42501','no');
CREATE INDEX charges_by_user ON charges ("user");
CREATE INDEX limits_by_subject ON limits (subject);
CREATE TRIGGER ledger_never_update BEFORE UPDATE ON ledger
BEGIN SELECT RAISE(ABORT, 'ledger is append-only'); END;
CREATE TRIGGER ledger_never_delete BEFORE DELETE ON ledger
BEGIN SELECT RAISE(ABORT, 'ledger is append-only'); END;
CREATE TRIGGER charges_never_update BEFORE UPDATE ON charges
BEGIN SELECT RAISE(ABORT, 'charges is append-only'); END;
CREATE TRIGGER charges_never_delete BEFORE DELETE ON charges
BEGIN SELECT RAISE(ABORT, 'charges is append-only'); END;
CREATE TRIGGER paid_never_update BEFORE UPDATE ON paid
BEGIN SELECT RAISE(ABORT, 'paid is append-only'); END;
CREATE TRIGGER paid_never_delete BEFORE DELETE ON paid
BEGIN SELECT RAISE(ABORT, 'paid is append-only'); END;
CREATE TRIGGER limits_never_update BEFORE UPDATE ON limits
BEGIN SELECT RAISE(ABORT, 'limits is append-only'); END;
CREATE TRIGGER limits_never_delete BEFORE DELETE ON limits
BEGIN SELECT RAISE(ABORT, 'limits is append-only'); END;
CREATE TRIGGER charges_in_order BEFORE INSERT ON charges
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charges)
BEGIN SELECT RAISE(ABORT, 'charges is append-only'); END;
CREATE TRIGGER accounts_never_delete BEFORE DELETE ON accounts
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
CREATE INDEX refusals_by_user ON refusals ("user", at);
CREATE TRIGGER refusals_never_update BEFORE UPDATE ON refusals
BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
CREATE TRIGGER refusals_never_delete BEFORE DELETE ON refusals
BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
CREATE TRIGGER refusals_in_order BEFORE INSERT ON refusals
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM refusals)
BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
CREATE TRIGGER moves_never_update BEFORE UPDATE ON moves
BEGIN SELECT RAISE(ABORT, 'moves is append-only'); END;
CREATE TRIGGER moves_never_delete BEFORE DELETE ON moves
BEGIN SELECT RAISE(ABORT, 'moves is append-only'); END;
CREATE TRIGGER moves_in_order BEFORE INSERT ON moves
WHEN NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM moves)
BEGIN SELECT RAISE(ABORT, 'moves is append-only'); END;
CREATE TRIGGER charges_end_with_departure BEFORE INSERT ON charges
WHEN (SELECT event FROM moves ORDER BY number DESC LIMIT 1) = 'departed'
BEGIN SELECT RAISE(ABORT, 'the ledger was moved'); END;
CREATE TRIGGER accounts_never_shrink BEFORE UPDATE ON accounts
WHEN NEW.subject <> OLD.subject OR NEW.loss < OLD.loss OR NEW.delta < OLD.delta OR NEW.pure < OLD.pure OR (OLD.pure IS NULL AND NEW.pure IS NOT NULL AND (OLD.loss > 0 OR OLD.delta > 0)) OR (NEW.pure = OLD.pure AND (NEW.loss > OLD.loss OR NEW.delta > OLD.delta))
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
COMMIT;
