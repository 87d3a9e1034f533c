// Nodes run as processes that are killed or frozen. The users of such a node are soon offline. The
// valid sessions of a frozen node are online again when the node resumes.

import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { Create } from "typebox/value";
import type { SessionRecord } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { clusterOptions, heartbeatMs } from "../../../src/cluster/options.ts";
import { sessionsOf } from "../../contract/cluster-fixture.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { measureStalls } from "../../support/stalls.ts";
import { isOnline, sessionOn, until } from "./nodes.ts";
import { startWholeNode, type WholeNode, type WholeNodeOptions } from "./whole-node.ts";

const { deadAfterMs } = Create(clusterOptions);
const DEFAULTS = { heartbeatMs: heartbeatMs(deadAfterMs), deadAfterMs };
const IN_TIME_MS = 3000;

const redis = await startRedis(t);

interface NodeProcess {
  readonly cluster: { readonly nodeId: string };
  readonly child: ChildProcess;
  readonly events: readonly ClusterEvent[];
  login(sessions: readonly SessionRecord[]): Promise<void>;
}

async function startProcess(t: Test, options: WholeNodeOptions): Promise<NodeProcess> {
  const file = fileURLToPath(new URL("./node-process.ts", import.meta.url));
  const args = [...TYPESCRIPT_ARGS, file, JSON.stringify(options)];
  const child = spawn(...tieToParent(process.execPath, args), {
    stdio: ["ignore", "inherit", "inherit", "ipc"],
  });
  t.teardown(() => child.kill("SIGKILL"));
  const events: ClusterEvent[] = [];
  let done: string | undefined;
  child.on("message", (message: { done?: string; event?: ClusterEvent }) => {
    if (message.event) events.push(message.event);
    done = message.done ?? done;
  });
  await until(() => done === "start");
  return {
    ...{ cluster: { nodeId: options.nodeId }, child, events },
    async login(sessions) {
      done = undefined;
      child.send({ call: "login", args: sessions });
      await until(() => done === "login");
    },
  };
}

function optionsOf(
  prefix: string,
  beats: Pick<WholeNodeOptions, "heartbeatMs" | "deadAfterMs">,
): WholeNodeOptions {
  const nodeId = `n-${randomUUID().slice(0, 8)}`;
  return { nodeId, settings: redisSettings(redis.url, { prefix }), ...beats };
}

async function startSurvivor(t: Test, options: WholeNodeOptions): Promise<WholeNode> {
  const node = await startWholeNode(options);
  t.teardown(() => node.close());
  return node;
}

/** Returns true if the node received an event that makes it read the presence of the user again. */
const mustReadPresence = ({ events }: Pick<WholeNode, "events">, uid: string) =>
  events.some((event) => event.kind === "missed" && event.topic === `p:${uid}`);

t.test("users of a killed node are offline within 3 s, and watchers are notified", async (t) => {
  const a = await startSurvivor(t, optionsOf("kill", DEFAULTS));
  const options = optionsOf("kill", DEFAULTS);
  const b = await startProcess(t, options);
  const uids = Array.from({ length: 100 }, (_, at) => `u${at}`);
  await b.login(uids.map((uid) => sessionOn(b, uid)));
  await a.cluster.listen("p:u7");
  t.ok((await a.directory.presence(uids)).every(({ online }) => online));
  const stalls = measureStalls(t);
  const killedAt = performance.now();
  b.child.kill("SIGKILL");
  await until(async () => (await a.directory.presence(uids)).every(({ online }) => !online));
  await until(() => mustReadPresence(a, "u7"));
  const tookMs = performance.now() - killedAt;
  t.ok(tookMs < IN_TIME_MS + 10 * stalls.totalMs(), `all are offline after ${tookMs} ms`);

  const restarted = await startProcess(t, options);
  await restarted.login([sessionOn(restarted, "u1")]);
  t.ok(await isOnline(a, "u1"), "a new process can use the node id");
});

t.test("a frozen node ends its sessions if another process has taken over its id", async (t) => {
  const beats = { heartbeatMs: 100, deadAfterMs: 2000 };
  const options = optionsOf("evict", beats);
  const frozen = await startProcess(t, options);
  const session = sessionOn(frozen, "ann");
  await frozen.login([session]);
  frozen.child.kill("SIGSTOP");
  const successor = await startSurvivor(t, options); // waits until the frozen process is dead
  await successor.directory.login(sessionOn(successor, "ben"));
  frozen.child.kill("SIGCONT");
  await until(() => frozen.events.length > 0);
  const { sessionId } = session;
  t.same(frozen.events, [{ kind: "end_session", uid: "ann", sessionId, reason: "unavailable" }]);
  t.ok(await isOnline(successor, "ben"));
});

t.test(
  "a frozen node that resumes after it was declared dead keeps only the sessions that are still valid",
  async (t) => {
    const beats = { heartbeatMs: 100, deadAfterMs: 2000 };
    const a = await startSurvivor(t, optionsOf("stop", beats));
    const b = await startProcess(t, optionsOf("stop", beats));
    const [continued, kicked] = [sessionOn(b, "stays"), sessionOn(b, "taken")];
    await b.login([continued, kicked]);
    await a.cluster.listen("p:stays");
    b.child.kill("SIGSTOP");
    const resumeAt = performance.now() + 2 * beats.deadAfterMs;
    await until(async () => !(await isOnline(a, "stays")));
    await until(() => mustReadPresence(a, "stays"));
    const later = sessionOn(a, "taken");
    await a.directory.login(later);
    await until(() => performance.now() >= resumeAt);
    t.notOk(await isOnline(a, "stays"));

    b.child.kill("SIGCONT");
    await until(() => isOnline(a, "stays"));
    t.same(await sessionsOf(a.store, "stays"), [continued]);
    await until(() => b.events.length > 0);
    t.same(b.events, [
      {
        ...{ kind: "end_session", uid: "taken" },
        ...{ sessionId: kicked.sessionId, reason: "kicked" },
      },
    ]);
    t.same(await sessionsOf(a.store, "taken"), [later]);
    const nodes = await a.cluster.nodes();
    t.same(nodes.map((node) => node.nodeId).sort(), [a.cluster.nodeId, b.cluster.nodeId].sort());
  },
);
