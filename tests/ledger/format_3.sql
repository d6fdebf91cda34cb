PRAGMA application_id = 1685091185;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE accounts (
    subject TEXT PRIMARY KEY,
    loss INTEGER NOT NULL CHECK (typeof(loss) = 'integer' AND loss >= 0),
    delta INTEGER NOT NULL CHECK (typeof(delta) = 'integer' AND delta >= 0)
) WITHOUT ROWID;
INSERT INTO "accounts" VALUES('dataset',15,1);
INSERT INTO "accounts" VALUES('user:alice',10,1);
INSERT INTO "accounts" VALUES('user:bob',15,1);
CREATE TABLE answers (
    key BLOB PRIMARY KEY,
    created TEXT NOT NULL,
    payload BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO "answers" VALUES(X'0000000000000000000000000000000000000000000000000000000000000001','2026-11-17T05:06:58.790343+00:00',X'616E20616E73776572');
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
);
INSERT INTO "charges" VALUES(1,'2026-11-17T05:06:58.776388+00:00','alice','SELECT COUNT(*) FROM people',10,1,10,1,X'F8183012EBBF2837980F8A0E29925469D5BC87EACDC1E534467B495606776629');
INSERT INTO "charges" VALUES(2,'2026-11-17T05:06:58.787407+00:00','bob','SELECT AVG(age) FROM people',5,0,15,1,X'AEAD312304CC584E0E96CD0C37AEC23789C8AA0C499B50286576F14A680BAD98');
CREATE TABLE ledger (
    id TEXT NOT NULL,
    dataset TEXT NOT NULL,
    accounting TEXT NOT NULL,
    created TEXT NOT NULL
);
INSERT INTO "ledger" VALUES('523463b03c914043978bcc4d7c89ae95','people','zcdp','2026-11-17T05:06:58.727126+00:00');
CREATE TABLE limits (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    subject TEXT NOT NULL,
    old_loss INTEGER,
    old_delta INTEGER,
    new_loss INTEGER,
    new_delta INTEGER
);
INSERT INTO "limits" VALUES(1,'2026-11-17T05:06:58.767087+00:00','dataset',NULL,NULL,100,10);
INSERT INTO "limits" VALUES(2,'2026-11-17T05:06:58.767144+00:00','user:alice',NULL,NULL,60,10);
INSERT INTO "limits" VALUES(3,'2026-11-17T05:06:58.767157+00:00','user:bob',NULL,NULL,9223372036854775807,9223372036854775807);
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
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000001','bob',2);
INSERT INTO "paid" VALUES(X'0000000000000000000000000000000000000000000000000000000000000002','bob',2);
CREATE TABLE refusals (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    "user" TEXT NOT NULL,
    sql TEXT NOT NULL,
    sqlstate TEXT NOT NULL,
    message TEXT NOT NULL
);
INSERT INTO "refusals" VALUES(1,'2026-11-17T05:06:58.788486+00:00','bob','SELECT name FROM people','42501','no');
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
CREATE TRIGGER accounts_never_shrink BEFORE UPDATE ON accounts
WHEN NEW.subject <> OLD.subject OR NEW.loss < OLD.loss OR NEW.delta < OLD.delta
BEGIN SELECT RAISE(ABORT, 'nothing is refunded'); END;
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
COMMIT;
