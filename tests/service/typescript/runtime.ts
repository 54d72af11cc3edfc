// A runtime that asks a service for everything that it needs, through the generated client: node out/runtime.js URL KEY
import assert from "node:assert/strict";
import { client } from "./client/client.gen.js";
import {
  getCurvesCurve, getModelsAliases, getOperationsInfo, postDecisionsDecide, postMeasurementsAdd, postPlansMakePlan,
  postPredictionsPredict, type Graph, type Machine, type Op,
} from "./client/index.js";

const [url, key] = process.argv.slice(2);
client.setConfig({ baseUrl: url, auth: () => key });

const op: Op = { kind: "mm", inputs: [[192, 64], [[64, 192], "float32"]], outputs: [[192, 192]] };
const info = await getOperationsInfo({ throwOnError: true });
assert.ok(info.data.policies.includes("critical_path"));
assert.ok((await getModelsAliases({ throwOnError: true })).data.aliases["champion"]);

// curves of many operations, and whether they still hold
const asked = await postPredictionsPredict({ body: { ops: [op] }, throwOnError: true });
const [seconds] = asked.data.seconds;
assert.equal(seconds?.length, asked.data.cases.length);
assert.ok(seconds.every((s, i) => asked.data.low[0]![i] <= s && s <= asked.data.high[0]![i]));
const etag = asked.response.headers.get("ETag")!;
const again = await postPredictionsPredict({ body: { ops: [op] }, headers: { "If-None-Match": etag } });
assert.equal(again.response.status, 412);

// an operation without a forecast has a problem of its own
const partly = await postPredictionsPredict({ body: { ops: [op, "mm-0000000000000000"] }, throwOnError: true });
assert.deepEqual(partly.data.seconds, [seconds, null]);
assert.deepEqual(partly.data.errors?.map((error) => error?.status ?? 200), [200, 404]);

// what is wrong is said with a pointer
const wrong = await postPredictionsPredict({ body: { ops: ["mm-0000000000000000"] } });
assert.equal(wrong.error?.pointer, "/ops/0");
assert.equal(wrong.response.status, 404);

// measurements, once under a key however often they are sent
const machine: Machine = { name: "two cores", cores: [[0, [0], 0, 0, 0, null], [1, [1], 0, 0, 0, null]] };
const sent = { machine, ops: [op], measurements: [{ op: 0, threads: 2, seconds: [2.1e-5, 2.0e-5] }] };
for (const replayed of [null, "true"]) {
  const stored = await postMeasurementsAdd({
    body: sent, headers: { "Idempotency-Key": "runtime-1" }, throwOnError: true,
  });
  assert.deepEqual(stored.data, { measurements: 1, samples: 2 });
  assert.equal(stored.response.headers.get("Idempotency-Replayed"), replayed);
}

// a plan, and decisions that go on with a context
const graph: Graph = {
  schema: "threadcast.graph/1",
  ops: [{ id: "a", kind: "mm", curve: { "1": 0.004, "2": 0.003 } }, { id: "b", kind: "mm", curve: { "1": 0.002 } }],
  edges: [["a", "b"]],
};
const plan = await postPlansMakePlan({ body: { graph, cores: 2, policy: "fifo" }, throwOnError: true });
assert.deepEqual(plan.data.ops.map((one) => one.id), ["a", "b"]);
const first = await postDecisionsDecide({ body: { graph, cores: 2, ready: ["a"] }, throwOnError: true });
assert.deepEqual(first.data.launches.map((launch) => launch.id), ["a"]);
const second = await postDecisionsDecide({
  body: { context: first.data.context!, ready: ["b"], running: [] }, throwOnError: true,
});
assert.deepEqual(second.data.launches.map((launch) => launch.id), ["b"]);

// a curve of a measured operation, asked for conditionally
const kept = { path: { op: process.argv[4]! }, query: { machine: process.argv[5]! } };
const curve = await getCurvesCurve({ ...kept, throwOnError: true });
const same = await getCurvesCurve({ ...kept, headers: { "If-None-Match": curve.response.headers.get("ETag")! } });
assert.equal(same.response.status, 304);

// without a key nobody is let in
client.setConfig({ baseUrl: url, auth: undefined });
const refused = await getOperationsInfo();
assert.equal(refused.response.status, 401);
assert.equal(refused.error?.in, "header");
console.log("done");
