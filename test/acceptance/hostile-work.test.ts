// Ten hostile sessions send the most expensive frames as fast as they can, while a good client
// sends messages and commands. The good client's times under attack are compared with its times
// before the attack. JINDOU_TEST_QUIET=1 also checks the promised 250 ms, on a machine that does
// nothing else. JINDOU_TEST_ATTACK_MS sets the duration of the attack, and
// JINDOU_TEST_CONVERSATIONS the length of the conversation lists. JINDOU_TEST_ATTACK selects one
// kind of frame, or all kinds with `all`. By default the attackers send no commands and no
// acknowledgements of commands.

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
const SELECTED_ATTACK = process.env.JINDOU_TEST_ATTACK ?? "";
const SESSIONS = 10;
const MEMBERS = 5000;
const ARCHIVED = 600;
const BASELINE_ROUNDS = 50;
const PAUSE_MS = 20;
const TIMEOUT_MS = 60_000;
/** Promised 99th percentile on a machine that does nothing else. */
const MAX_P99_MS = 250;
/**
 * Bound of the median under attack on any machine, as a multiple of the 99th percentile before the
 * attack. Without work limits no response arrives for a minute.
 */
const SLOWDOWN = 10;
/** Time added to the bound of the median. */
const ALLOWANCE_MS = 20_000;
const IS_QUIET = process.env.JINDOU_TEST_QUIET === "1";
/**
 * Number of refused frames after which the attack counts as under way. On a busy machine the
 * attackers need longer to send them.
 */
const REFUSED_FRAMES = 100;
/** Maximum duration of the attack while fewer than `REFUSED_FRAMES` frames are refused. */
const MAX_ATTACK_MS = 60_000 + ATTACK_MS;

t.setTimeout(180_000 + ATTACK_MS * 4);

const broker = await spawnBroker(t);
const http = new KeepAlive();
t.teardown(() => http.close());
const call = async (path: string, body: unknown) => {
  const { status, body: response } = await http.call(broker.apiPort, path, body);
  if (status !== 200) throw new Error(`${path} failed: ${JSON.stringify(response)}`);
};

async function runAll<T>(items: readonly T[], run: (item: T) => Promise<void>) {
  const remaining = items.values();
  const worker = async () => {
    for (const item of remaining) await run(item);
  };
  await Promise.all(Array.from({ length: 32 }, worker));
}

const range = (length: number) => Array.from({ length }, (_, i) => i);
const hostile = range(SESSIONS).map((i) => `hostile-${i}`);
const good = ["alice", "bob"];

await runAll([...hostile, ...good], (uid) =>
  call("/user/token", { uid, token: "t", device_flag: 0 }),
);
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
await runAll(range(ARCHIVED), () => post("hostile-0", ARCHIVE));
await runAll(range(CONVERSATIONS), async (i) => {
  await group(`talk-${i}`, hostile);
  await post("hostile-0", `talk-${i}`);
});

let overloadedCount = 0;

interface Rounds {
  readonly sends: number[];
  /** Time from each send until the recipient had the command, in milliseconds. */
  readonly commands: number[];
  readonly acknowledgements: number[];
}

t.test(
  "a client gets its replies within a bounded time while ten hostile sessions send expensive frames",
  async (t) => {
    const port = broker.clientPort;
    const [alice, bob] = await Promise.all(
      good.map((uid) => connectNative(t, { port, uid, token: "t", timeoutMs: TIMEOUT_MS })),
    );
    if (alice === undefined || bob === undefined) throw new Error("the clients are missing");
    const baseline = await roundTrips(alice, bob, (done) => done < BASELINE_ROUNDS);
    const attack = await startAttack(t);
    const startMs = performance.now();
    const rounds = await roundTrips(alice, bob, async () => {
      const attackMs = performance.now() - startMs;
      if (attackMs < ATTACK_MS) return true;
      return attackMs < MAX_ATTACK_MS && (await refusedFrames()) < REFUSED_FRAMES;
    });
    const counts = await attack.stop();
    const afterMs = await firstRoundMs(alice, bob);
    t.comment(`before the attack: ${figures(baseline)}`);
    t.comment(
      `under attack: ${figures(rounds)}; ${overloadedCount} requests were refused as overloaded`,
    );
    t.comment(`the attack: ${counts}`);
    t.comment(`first round after the attack: ${afterMs.toFixed(0)} ms`);
    for (const kind of ["sends", "commands", "acknowledgements"] as const) {
      const times = rounds[kind];
      t.ok(times.length > 0, `${kind} are answered under attack`);
      const median = percentile(times, 0.5);
      const boundMs = SLOWDOWN * percentile(baseline[kind], 0.99) + ALLOWANCE_MS;
      t.ok(
        median < boundMs,
        `the median time of ${kind} is ${median.toFixed(0)} ms, at most ${boundMs.toFixed(0)} ms`,
      );
      const p99 = percentile(times, 0.99);
      if (IS_QUIET)
        t.ok(
          p99 < MAX_P99_MS,
          `the 99th percentile of ${kind} is ${p99.toFixed(0)} ms, at most ${MAX_P99_MS} ms`,
        );
    }
    t.ok((await refusedFrames()) >= REFUSED_FRAMES, "hostile frames are rate limited");
    const { body } = await broker.call("/metrics");
    if (IS_QUIET)
      t.match(body, /connections_ended_total\{reason="rate_limited"\} \d/, "attackers are closed"); // on a busy machine attackers may be too slow to be closed
    t.equal(await broker.terminate(), 0, "the broker drains and exits with 0");
  },
);

/**
 * Sends messages and commands from alice to bob, and acknowledges the commands, one after the
 * other. Returns the duration of each in milliseconds.
 */
async function roundTrips(
  alice: NativeClient,
  bob: NativeClient,
  continues: (done: number) => boolean | Promise<boolean>,
): Promise<Rounds> {
  const channel = { type: PERSON_CHANNEL, id: bob.uid } as const;
  const rounds: Rounds = { sends: [], commands: [], acknowledgements: [] };
  for (let done = 0; await continues(done); done++) {
    const sendMs = performance.now();
    await untilAccepted(() => alice.send(channel, "hello"));
    rounds.sends.push(performance.now() - sendMs);
    const commandMs = performance.now();
    const command = { type: 99, cmd: "x", param: {} };
    await untilAccepted(() => alice.send(channel, command));
    const push = await bob.nextPush(({ kind }) => kind === "command");
    const ackMs = performance.now();
    rounds.commands.push(ackMs - commandMs);
    if (push.kind === "command") await untilAccepted(() => bob.acknowledge([push.inboxSeq]));
    rounds.acknowledgements.push(performance.now() - ackMs);
    await delay(PAUSE_MS);
  }
  return rounds;
}

/** Returns the number of frames that the broker has refused because of the rate limit. */
async function refusedFrames(): Promise<number> {
  const { body } = await broker.call("/metrics");
  const [, count] = /code="rate_limited",source="socket"\} (\d+)/.exec(String(body)) ?? [];
  return Number(count ?? 0);
}

/**
 * Repeats the request while the broker is overloaded. The time of the request includes the
 * repetitions.
 */
async function untilAccepted(request: () => Promise<unknown>): Promise<void> {
  for (;;)
    try {
      await request();
      return;
    } catch (error) {
      const isBusy = error instanceof NativeClientError && error.code === "overloaded";
      if (!isBusy) throw error;
      overloadedCount += 1;
      await delay(PAUSE_MS);
    }
}

/** Returns the milliseconds that the first round after the attack takes. */
async function firstRoundMs(alice: NativeClient, bob: NativeClient) {
  const startMs = performance.now();
  await roundTrips(alice, bob, (done) => done < 1);
  return performance.now() - startMs;
}

async function startAttack(t: Test) {
  const file = fileURLToPath(new URL("./hostile-sessions.ts", import.meta.url));
  const args = ["attack", `${broker.clientPort}`, `${SESSIONS}`, SELECTED_ATTACK];
  const child = spawn(
    // Attackers would run on other machines, so here they get the lowest priority for processor
    // time.
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
    .map(([kind, times]) => {
      const [p50, p99, max] = [0.5, 0.99, 1].map((share) => percentile(times, share).toFixed(1));
      return `${kind} p50 ${p50} p99 ${p99} max ${max} ms in ${times.length} rounds`;
    })
    .join("; ");
}
