// Nobody sees what they may not [decisions: who may still see]: the node of a user loses its
// subscriptions, or freezes, while a member is removed or a token replaced at another node, or a
// main device logs in there; what is sent after that was answered never reaches the old session,
// nor a reader of a stream. JINDOU_TEST_ROUNDS sets the rounds of short cuts, JINDOU_TEST_LONG_CUTS
// and _FREEZES how often ten of them share a long interruption, JINDOU_TEST_CUT_MS how long a cut
// is then.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t, { type Test } from "tap";
import { textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { ClusterNodes } from "./cluster-nodes.ts";
import { eventually } from "./logins.ts";
import { SseReader } from "./sse-reader.ts";

const ROUNDS = volume(200, "JINDOU_TEST_ROUNDS");
const LONG_CUT_MS = volume(10_000, "JINDOU_TEST_CUT_MS");
const LONG_CUTS = volume(5, "JINDOU_TEST_LONG_CUTS");
const FREEZES = volume(20, "JINDOU_TEST_FREEZES");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
/** Rounds that share an interruption. */
const AT_ONCE = 10;
const LONG_ROUNDS = LONG_CUTS * AT_ONCE;
const FROZEN_ROUNDS = Math.ceil(FREEZES / 2) * AT_ONCE;
const AGAIN_MS = 4;
/** Of a member before it is removed while its session begins: until some time after the CONNACK. */
const MOST_PAUSE_MS = 20;
/** What was wrongly held back comes within this time after everything else. */
const LATE_MS = 150;
/** Of the user concerned, and of all calls. */
const HERE = 0;
const ELSEWHERE = 1;
const TOKEN = "a-token";
const LATER = "later";
const AGAIN = "again";

t.setTimeout(120_000 + ROUNDS * 2000 + FREEZES * 20_000 + LONG_CUTS * (LONG_CUT_MS + 10_000) * 2);

/**
 * `readded`: removed, and added again after a while. `replaced`: left out of a new list of members.
 * `kicked`: by a later main device.
 */
type Loss = "removed" | "readded" | "token" | "kicked" | "replaced" | WhileConnecting;
/** The same while its session begins. */
type WhileConnecting = "removed-connecting" | "replaced-connecting";

const isConnecting = (loss: Loss) => loss.endsWith("-connecting");

/** Those where a reader of the stream loses its right, and keeps it, at once. */
const FOLLOWED: ReadonlySet<Loss> = new Set([
  ...(["removed", "replaced"] as const),
  ...(["token", "kicked"] as const),
]);

interface World {
  readonly nodes: ClusterNodes;
  /** To the servers of Redis. */
  readonly redis: readonly Redis[];
  readonly random: Random;
}

/** Runs while rights are lost; resolves when the interruption is over. */
type Interruption = (world: World, meanwhile: () => Promise<void>) => Promise<void>;

let users = 0;

/** One user who loses a right, and one of the same group who keeps it. */
class Round {
  readonly loss: Loss;
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #uid: string;
  readonly #witness: string;
  readonly #group: string;
  #client: NativeClient | undefined;
  #coming: Promise<NativeClient> | undefined;
  #watcher: NativeClient | undefined;
  #newer: NativeClient | undefined;
  /** The user's reader of the stream, with its token. */
  readonly #reader = new SseReader(0);
  #fault: string | undefined;

  constructor(world: World, loss: Loss) {
    users += 1;
    this.loss = loss;
    this.#nodes = world.nodes;
    this.#random = world.random;
    this.#uid = `user-${users}`;
    this.#witness = `witness-${users}`;
    this.#group = `group-${users}`;
  }

  async open(): Promise<void> {
    const uids = [this.#uid, this.#witness];
    for (const uid of uids) await this.#setToken(uid, TOKEN);
    await this.#call("/channel", {
      ...{ channel_id: this.#group, channel_type: 2, subscribers: uids },
    });
    this.#watcher = await this.#connect(this.#witness);
    if (!isConnecting(this.loss)) this.#client = await this.#connect(this.#uid);
    await this.#event("___TextMessageStart", "");
    await this.#event("___TextMessageContent", "early ");
    await this.#send("early");
    for (const client of [this.#client, this.#watcher])
      await client?.waitFor((one) => wordsOf(one).includes("early"));
    if (FOLLOWED.has(this.loss)) await this.#follow();
  }

  async #follow(): Promise<void> {
    const query = `uid=${this.#uid}&token=${TOKEN}&device_flag=0`;
    const path = `/stream/2/${this.#group}/stream-of-${this.#group}?${query}`;
    const port = this.#nodes.clientPortOf(HERE);
    this.#reader.read(port, path).catch((error) => {
      this.#fault = `${error}`;
    });
    await eventually("the reader to read", () => this.#reader.text.includes("early"));
  }

  /** Takes the right away, and then sends what the user may not see. */
  async lose(): Promise<void> {
    if (isConnecting(this.loss)) {
      this.#coming = this.#connect(this.#uid);
      await pause(this.#random.below(MOST_PAUSE_MS));
    }
    if (this.loss === "token") await this.#setToken(this.#uid, "another");
    else if (this.loss === "kicked") this.#newer = await this.#connect(this.#uid, ELSEWHERE);
    else if (this.loss.startsWith("replaced"))
      await this.#membership("subscriber_add", this.#witness, { reset: 1 });
    else await this.#membership("subscriber_remove", this.#uid);
    await this.#send(LATER);
    await this.#event("___TextMessageContent", LATER);
    await this.#call("/event", this.#eventBody("a_custom", LATER));
    await this.#send(LATER, { header: { no_persist: 1 } });
    if (this.loss === "token" || this.loss === "kicked")
      await this.#send(LATER, PERSONAL(this.#uid));
    if (this.loss !== "readded") return;
    await this.#membership("subscriber_add", this.#uid);
    await this.#send(AGAIN);
  }

  /** A frozen node, or one that cannot listen just now, is tried until it answers. */
  async #connect(uid: string, at = HERE): Promise<NativeClient> {
    const port = this.#nodes.clientPortOf(at);
    for (;;)
      try {
        return await connectNative(undefined, { uid, token: TOKEN, port });
      } catch (error) {
        if (!(error instanceof NativeClientError)) throw error;
        if (!/unavailable|^closed_/.test(error.code)) throw error;
        await pause(AGAIN_MS);
      }
  }

  /** Resolves when everybody has what is theirs; gives what the user saw and may not. */
  async wrong(): Promise<readonly string[]> {
    const { loss } = this;
    await this.#send("last");
    const watcher = this.#watcher as NativeClient; // it is open
    await watcher.waitFor(() => wordsOf(watcher).includes("last"), "the last");
    this.#client ??= await this.#coming;
    const client = this.#client as NativeClient;
    if (loss === "readded")
      await client.waitFor(() => wordsOf(client).includes("last"), "the last");
    if (loss === "token" || loss === "kicked") await client.closed;
    const newer = this.#newer;
    await newer?.waitFor(() => wordsOf(newer).includes("last"), "the last");
    await pause(LATE_MS);
    // Who comes back to a stream that still runs is shown its text so far, as whoever joins late.
    const saw = loss === "readded" ? messagesOf(client) : wordsOf(client);
    const leaks = saw.filter((word) => word.includes(LATER));
    const seen = wordsOf(watcher).filter((word) => word === LATER);
    if (seen.length === 0) leaks.push("the witness missed it");
    if (newer !== undefined && !messagesOf(newer).includes(LATER))
      leaks.push("the newer session missed it");
    if (loss === "kicked")
      await eventually("the reader, whose token is right, to go on", () =>
        this.#reader.text.includes(LATER),
      );
    else if (this.#reader.text.includes(LATER)) leaks.push("a reader of the stream");
    if (this.#fault !== undefined) leaks.push(`the reader: ${this.#fault}`);
    if (loss === "readded" && !saw.includes(AGAIN))
      leaks.push("what came after the return is missing");
    const twice = saw.filter((word, at) => saw.indexOf(word) !== at);
    if (loss === "readded") leaks.push(...twice);
    return leaks.map((leak) => `${this.#uid} (${loss}): ${leak}`);
  }

  close(): void {
    this.#client?.kill();
    this.#watcher?.kill();
    this.#newer?.kill();
    this.#reader.drop();
  }

  async #setToken(uid: string, token: string): Promise<void> {
    const device = { uid, token, device_flag: 0, device_level: 1 };
    await this.#call("/user/token", device);
  }

  async #membership(change: string, uid: string, over: object = {}): Promise<void> {
    await this.#call(`/channel/${change}`, {
      ...{ channel_id: this.#group, channel_type: 2 },
      ...{ subscribers: [uid], temp_subscriber: 0, ...over },
    });
  }

  async #send(text: string, over: object = {}): Promise<void> {
    await this.#call("/message/send", {
      ...{ channel_id: this.#group, channel_type: 2, from_uid: this.#witness },
      ...{ payload: textPayload(text), ...over },
    });
  }

  async #event(type: string, data: string): Promise<void> {
    const { status, body } = await this.#ask("/event", this.#eventBody(type, data));
    if (status !== 200) throw new Error(`${type}: ${JSON.stringify(body)}`);
  }

  #eventBody(type: string, data: string) {
    return {
      ...{ channel_id: this.#group, channel_type: 2, from_uid: this.#witness },
      ...{ client_msg_no: `stream-of-${this.#group}`, event: { type, data } },
    };
  }

  async #call(path: string, body: object): Promise<void> {
    const { status, body: answer } = await this.#ask(path, body);
    if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(answer)}`);
  }

  /** Until the node answers with anything but "later". */
  async #ask(path: string, body: object) {
    for (;;) {
      const answer = await this.#nodes.callOf(ELSEWHERE, path, body);
      if (answer.status !== 503) return answer;
      await pause(AGAIN_MS);
    }
  }
}

const PERSONAL = (uid: string) => ({ channel_id: uid, channel_type: 1 });

/** The texts of all that the client was pushed. */
function wordsOf(client: NativeClient): readonly string[] {
  const events = client.events.map(({ data }) => data);
  const streams = client.pushesOf("stream").map(({ snapshot }) => snapshot.text);
  return [...messagesOf(client), ...events, ...streams];
}

/** Those of plain messages. */
function messagesOf(client: NativeClient): readonly string[] {
  return client.messages
    .filter(({ stream }) => stream === undefined)
    .map(({ payload }) => JSON.parse(Buffer.from(payload).toString()).content);
}

async function play(
  t: Test,
  world: World,
  {
    rounds,
    losses,
    interrupt,
  }: {
    readonly rounds: number;
    readonly losses: readonly Loss[];
    readonly interrupt: Interruption;
  },
): Promise<void> {
  const wrong: string[] = [];
  let played = 0;
  while (played < rounds) {
    const count = Math.min(AT_ONCE, rounds - played);
    const batch = Array.from(
      { length: count },
      (_, at) => new Round(world, losses[(played + at) % losses.length] as Loss),
    );
    await world.nodes.untilReady();
    await Promise.all(batch.map((round) => round.open()));
    await interrupt(world, async () => {
      await Promise.all(batch.map((round) => round.lose()));
    });
    for (const found of await Promise.all(batch.map((one) => one.wrong()))) wrong.push(...found);
    for (const round of batch) round.close();
    played += count;
  }
  t.same(wrong, [], `${rounds} rounds`);
}

async function cut({ redis }: World): Promise<void> {
  await Promise.all(redis.map((one) => one.call("CLIENT", "KILL", "TYPE", "pubsub")));
}

const once: Interruption = async (world, meanwhile) => {
  await cut(world);
  await meanwhile();
};

/** The rights are lost while the subscriptions stay away. */
const long: Interruption = async (world, meanwhile) => {
  const until = Date.now() + LONG_CUT_MS;
  let isOver = false;
  const cutting = (async () => {
    while (!isOver) {
      await cut(world);
      await pause(AGAIN_MS);
    }
  })();
  await pause(LONG_CUT_MS / 2);
  await meanwhile();
  await pause(Math.max(0, until - Date.now()));
  isOver = true;
  await cutting;
};

const never: Interruption = (_, meanwhile) => meanwhile();

function freeze(isCutToo: boolean): Interruption {
  return async (world, meanwhile) => {
    const { nodes, random } = world;
    const ms = 2000 + random.below(4000);
    nodes.signal(HERE, "SIGSTOP");
    try {
      await Promise.all([pause(random.below(ms)).then(meanwhile), pause(ms)]);
      if (isCutToo) await cut(world);
    } finally {
      nodes.signal(HERE, "SIGCONT");
    }
  };
}

async function start(t: Test, url: string, servers: readonly RedisServer[]): Promise<World> {
  const random = new Random(SEED);
  const nodes = await ClusterNodes.start(t, {
    ...{ redisUrl: url, random, count: 2 },
    settings: { JINDOU_AUTH_CLIENTS: "token" },
  });
  return { nodes, random, redis: servers.map((one) => one.client()) };
}

t.test("one server", async (t) => {
  const server = await startRedis(t);
  const world = await start(t, server.url, [server]);
  const still: readonly Loss[] = [
    ...(["removed", "token", "readded", "replaced"] as const),
    ...(["removed-connecting", "replaced-connecting"] as const),
  ];
  const losses = [...still, "kicked"] as const; // where nobody can listen, nobody logs in
  const away = `subscriptions are away for ${LONG_CUT_MS} ms`;
  const scenes = [
    ["no interruption", ROUNDS, losses, never],
    [`subscriptions are cut, ${ROUNDS} rounds`, ROUNDS, losses, once],
    [away, LONG_ROUNDS, still, long],
    ["a node is frozen", FROZEN_ROUNDS, losses, freeze(false)],
    ["a node is frozen and cut", FROZEN_ROUNDS, losses, freeze(true)],
  ] as const;
  for (const [what, rounds, losses, interrupt] of scenes)
    await t.test(what, (t) => play(t, world, { rounds, losses, interrupt }));
});

t.test("a Redis Cluster", async (t) => {
  const servers = await startRedisCluster(t);
  const world = await start(t, servers.url, servers.primaries);
  const losses: readonly Loss[] = [
    "removed",
    "readded",
    "replaced",
    "removed-connecting",
    "replaced-connecting",
  ];
  const scenes = [
    ["no interruption", ROUNDS, never],
    [`subscriptions are cut, ${ROUNDS} rounds`, ROUNDS, once],
    [`subscriptions are away for ${LONG_CUT_MS} ms`, LONG_ROUNDS, long],
    ["a node is frozen", FROZEN_ROUNDS, freeze(false)],
    ["a node is frozen and cut", FROZEN_ROUNDS, freeze(true)],
  ] as const;
  for (const [what, rounds, interrupt] of scenes)
    await t.test(what, (t) => play(t, world, { rounds, losses, interrupt }));
});
