BEGIN TRANSACTION;
CREATE TABLE batches (
	idempotency_key TEXT NOT NULL, 
	PRIMARY KEY (idempotency_key)
);
INSERT INTO "batches" VALUES('first');
CREATE TABLE machines (
	id INTEGER NOT NULL, 
	fingerprint TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (fingerprint)
);
INSERT INTO "machines" VALUES(1,'bench-8c-f59fe644','{"name":"bench","cores":[[0,[0],0,0,0,null],[1,[1],0,0,0,null],[2,[2],1,0,0,null],[3,[3],1,0,0,null],[4,[4],2,0,0,null],[5,[5],2,0,0,null],[6,[6],3,0,0,null],[7,[7],3,0,0,null]],"caches":[]}');
CREATE TABLE measurements (
	id INTEGER NOT NULL, 
	op_id INTEGER NOT NULL, 
	machine_id INTEGER NOT NULL, 
	threads INTEGER NOT NULL, 
	affinity TEXT NOT NULL, 
	sample_count INTEGER NOT NULL, 
	counters TEXT NOT NULL, 
	samples BLOB NOT NULL, 
	conditions TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(op_id) REFERENCES ops (id), 
	FOREIGN KEY(machine_id) REFERENCES machines (id)
);
INSERT INTO "measurements" VALUES(1,1,1,2,'compact',3,'["page_faults"]',X'9A9999999999C93F000000000000D03F333333333333D33F0000000000000840000000000000F87F0000000000000840','{"cache":"warm"}');
INSERT INTO "measurements" VALUES(2,2,1,4,'spread',1,'["page_faults"]',X'000000000000E03F000000000000F87F','{}');
CREATE TABLE ops (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key")
);
INSERT INTO "ops" VALUES(1,'mm-8c3834a2ab4b668e','mm','{"kind":"mm","inputs":[[[8,4]],[[4,8]]],"flops":512.0,"bytes":512.0,"attributes":{"alpha":0.1},"outputs":[[[8,8]]]}');
INSERT INTO "ops" VALUES(2,'relu-4af6ddcf2c57207f','relu','{"kind":"relu","inputs":[[[64]]],"flops":64.0,"bytes":256.0}');
CREATE TABLE threadcast_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT threadcast_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "threadcast_schema" VALUES('0001');
CREATE INDEX ix_ops_kind ON ops (kind);
CREATE INDEX ix_measurements_op ON measurements (op_id);
CREATE INDEX ix_measurements_machine_op ON measurements (machine_id, op_id);
COMMIT;
