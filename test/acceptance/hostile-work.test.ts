// Issue 8, done when: ten hostile sessions that send what costs the broker most, as fast as they
// can, do not slow a good client down by more than the times seen without them explain.
// JINDOU_TEST_QUIET=1 also holds the promised 250 ms, on a machine that does nothing else.
// JINDOU_TEST_ATTACK_MS lengthens the attack, JINDOU_TEST_CONVERSATIONS the lists,
// JINDOU_TEST_ATTACK selects one kind, or `all` of them, with commands.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { spawnBroker, textPayload } from "../support/broker.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "../support/child.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { ARCHIVE, CROWD } from "./hostile-sessions.ts";
import { KeepAlive } from "./keep-alive.ts";

const ATTACK_MS = Number(process.env.JINDOU_TEST_ATTACK_MS ?? 3000);
const CONVERSATIONS = Number(process.env.JINDOU_TEST_CONVERSATIONS ?? 500);
const ONLY = process.env.JINDOU_TEST_ATTACK ?? "";
const SESSIONS = 10;
const MEMBERS = 5000;
const ARCHIVED = 600;
const CALM_ROUNDS = 50;
const PAUSE_MS = 20;
const TIMEOUT_MS = 60_000;
/** The promise, on a machine that does nothing else. */
const MAX_P99_MS = 250;
/**
 * The median under attack, on any machine: by the times of the same machine without the attack.
 * Without limits of work no answer comes for a minute.
 */
const SLOWDOWN = 10;
const ALLOWANCE_MS = 20_000;
const IS_QUIET = process.env.JINDOU_TEST_QUIET === "1";

t.setTimeout(120_000 + ATTACK_MS * 4);

const broker = await spawnBroker(t);
const http = new KeepAlive();
t.teardown(() => http.close());
const call = async (path: string, body: unknown) => {
  const { status, body: answer } = await http.call(broker.apiPort, path, body);
  if (status !== 200) throw new Error(`${path}: ${JSON.stringify(answer)}`);
};

async function all<T>(items: readonly T[], run: (item: T) => Promise<void>) {
  const left = items.values();
  const worker = async () => {
    for (const item of left) await run(item);
  };
  await Promise.all(Array.from({ length: 32 }, worker));
}

const range = (length: number) => Array.from({ length }, (_, i) => i);
const hostile = range(SESSIONS).map((i) => `hostile-${i}`);
const good = ["alice", "bob"];

await all([...hostile, ...good], (uid) => call("/user/token", { uid, token: "t", device_flag: 0 }));
const post = (from: string, id: string) =>
  call("/message/send", {
    ...{ from_uid: from, channel_id: id, channel_type: GROUP_CHANNEL },
    payload: textPayload("x".repeat(100)),
  });
const group = (id: string, subscribers: readonly string[]) =>
  call("/channel", {
    channel_id: id,
    channel_type: GROUP_CHANNEL,
    subscribers,
  });
await group(CROWD, [...hostile, ...range(MEMBERS).map((i) => `member-${i}`)]);
await group(ARCHIVE, hostile);
await all(range(ARCHIVED), () => post("hostile-0", ARCHIVE));
await all(range(CONVERSATIONS), async (i) => {
  await group(`talk-${i}`, hostile);
  await post("hostile-0", `talk-${i}`);
});

let refused = 0;

interface Rounds {
  readonly sends: number[];
  /** Until the recipient has it. */
  readonly commands: number[];
  readonly acknowledgements: number[];
}

t.test("ten hostile sessions do not slow a good client down", async (t) => {
  const port = broker.clientPort;
  const [alice, bob] = await Promise.all(
    good.map((uid) => connectNative(t, { port, uid, token: "t", timeoutMs: TIMEOUT_MS })),
  );
  if (alice === undefined || bob === undefined) throw new Error("no client");
  const calm = await roundTrips(alice, bob, (done) => done < CALM_ROUNDS);
  const attack = await startAttack(t);
  const endMs = performance.now() + ATTACK_MS;
  const rounds = await roundTrips(alice, bob, () => performance.now() < endMs);
  const counts = await attack.stop();
  const afterMs = await recovered(alice, bob);
  t.comment(`calm: ${figures(calm)}`);
  t.comment(`under attack: ${figures(rounds)}; ${refused} refused as overloaded`);
  t.comment(`the attack: ${counts}`);
  t.comment(`first round after it: ${afterMs.toFixed(0)} ms`);
  for (const what of ["sends", "commands", "acknowledgements"] as const) {
    const times = rounds[what];
    t.ok(times.length > 0, `${what} were answered`);
    const median = percentile(times, 0.5);
    const most = SLOWDOWN * percentile(calm[what], 0.99) + ALLOWANCE_MS;
    t.ok(median < most, `${what}: p50 ${median.toFixed(0)} of ${most.toFixed(0)} ms`);
    const p99 = percentile(times, 0.99);
    if (IS_QUIET) t.ok(p99 < MAX_P99_MS, `${what}: p99 ${p99.toFixed(0)} ms`);
  }
  const { body } = await broker.call("/metrics");
  t.match(body, /code="rate_limited",source="socket"\} \d{3}/);
  if (IS_QUIET) t.match(body, /connections_ended_total\{reason="rate_limited"\} \d/); // else attackers may be too slow for that
  t.equal(await broker.terminate(), 0, "it ends in order");
});

/**
 * Sends, commands and their acknowledgements between alice and bob, one after the other;
 * milliseconds of each.
 */
async function roundTrips(
  alice: NativeClient,
  bob: NativeClient,
  goesOn: (done: number) => boolean,
): Promise<Rounds> {
  const channel = { type: PERSON_CHANNEL, id: bob.uid } as const;
  const rounds: Rounds = { sends: [], commands: [], acknowledgements: [] };
  for (let done = 0; goesOn(done); done++) {
    const sendMs = performance.now();
    await accepted(() => alice.send(channel, "hello"));
    rounds.sends.push(performance.now() - sendMs);
    const commandMs = performance.now();
    const command = { type: 99, cmd: "x", param: {} };
    await accepted(() => alice.send(channel, command));
    const push = await bob.nextPush(({ kind }) => kind === "command");
    const ackMs = performance.now();
    rounds.commands.push(ackMs - commandMs);
    if (push.kind === "command") await accepted(() => bob.acknowledge([push.inboxSeq]));
    rounds.acknowledgements.push(performance.now() - ackMs);
    await delay(PAUSE_MS);
  }
  return rounds;
}

/** Asked again while the broker is busy: that counts as time. */
async function accepted(ask: () => Promise<unknown>): Promise<void> {
  for (;;)
    try {
      await ask();
      return;
    } catch (error) {
      const isBusy = error instanceof NativeClientError && error.code === "overloaded";
      if (!isBusy) throw error;
      refused += 1;
      await delay(PAUSE_MS);
    }
}

async function recovered(alice: NativeClient, bob: NativeClient) {
  const startMs = performance.now();
  await roundTrips(alice, bob, (done) => done < 1);
  return performance.now() - startMs;
}

async function startAttack(t: Test) {
  const file = fileURLToPath(new URL("./hostile-sessions.ts", import.meta.url));
  const args = ["attack", `${broker.clientPort}`, `${SESSIONS}`, ONLY];
  const child = spawn(
    // Attackers come from other machines: what they take of this one's processors is not the
    // broker's to give.
    ...tieToParent("nice", ["-n", "19", process.execPath, ...TYPESCRIPT_ARGS, file, ...args]),
    { stdio: ["pipe", "pipe", "inherit"] },
  );
  t.teardown(() => child.kill("SIGKILL"));
  let output = "";
  child.stdout.on("data", (data: Buffer) => {
    output += data.toString();
  });
  await once(child.stdout, "data");
  return {
    async stop(): Promise<string> {
      const exited = once(child, "close");
      child.stdin.end();
      await exited;
      return output.slice(output.indexOf("{")).trim();
    },
  };
}

function percentile(times: readonly number[], share: number): number {
  const sorted = times.toSorted((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) * share)] ?? Number.NaN;
}

function figures(rounds: Rounds): string {
  return Object.entries(rounds)
    .map(([what, times]) => {
      const [p50, p99, max] = [0.5, 0.99, 1].map((share) => percentile(times, share).toFixed(1));
      return `${what} p50 ${p50} p99 ${p99} max ${max} ms of ${times.length}`;
    })
    .join("; ");
}
