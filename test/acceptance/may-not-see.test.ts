// No user sees content without the permission to read it [decisions: who may still see]. The user's
// node loses its subscriptions or freezes, while on another node the user is removed from a group,
// gets a new token or logs in with another main device. Messages that are sent after this change
// never reach the old session, nor a reader of the group's stream. JINDOU_TEST_ROUNDS sets the
// number of rounds with short cuts. JINDOU_TEST_LONG_CUTS and JINDOU_TEST_FREEZES set the number of
// long cuts and of freezes, each of which ten rounds share. JINDOU_TEST_CUT_MS sets the duration of
// a long cut.

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
import { SseReader, SseRefusal } from "./sse-reader.ts";

const ROUNDS = volume(200, "JINDOU_TEST_ROUNDS");
const LONG_CUT_MS = volume(10_000, "JINDOU_TEST_CUT_MS");
const LONG_CUTS = volume(5, "JINDOU_TEST_LONG_CUTS");
const FREEZES = volume(20, "JINDOU_TEST_FREEZES");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
/** Number of rounds that share one interruption. */
const PARALLEL_ROUNDS = 10;
const LONG_ROUNDS = LONG_CUTS * PARALLEL_ROUNDS;
const FROZEN_ROUNDS = Math.ceil(FREEZES / 2) * PARALLEL_ROUNDS;
const RETRY_PAUSE_MS = 4;
/**
 * Maximum pause between the start of a connect and the removal of the member. Some removals happen
 * after the CONNACK.
 */
const MAX_PAUSE_MS = 20;
/** Time within which content that was wrongly held back would be pushed. */
const LATE_MS = 150;
/** Node of the user, and node that receives all HTTP calls. */
const HERE = 0;
const ELSEWHERE = 1;
const TOKEN = "a-token";
const LATER = "later";
const AFTER_RETURN = "again";

t.setTimeout(120_000 + ROUNDS * 2000 + FREEZES * 20_000 + LONG_CUTS * (LONG_CUT_MS + 10_000) * 2);

/**
 * How the user loses the permission to read. `readded`: the user is removed and added again later.
 * `replaced`: a new member list lacks the user. `kicked`: another main device logs in.
 */
type Loss = "removed" | "readded" | "token" | "kicked" | "replaced" | WhileConnecting;
/** Losses of the permission that happen while the user's session is connecting. */
type WhileConnecting = "removed-connecting" | "replaced-connecting";

const isConnecting = (loss: Loss) => loss.endsWith("-connecting");

/** Losses for which the user also reads the stream over HTTP. */
const FOLLOWED: ReadonlySet<Loss> = new Set([
  ...(["removed", "replaced"] as const),
  ...(["token", "kicked"] as const),
]);

interface World {
  readonly nodes: ClusterNodes;
  /** Connections to the Redis servers. */
  readonly redis: readonly Redis[];
  readonly random: Random;
}

/** Calls `meanwhile` during an interruption. Resolves when the interruption is over. */
type Interruption = (world: World, meanwhile: () => Promise<void>) => Promise<void>;

let userCount = 0;

/** A user who loses the right to read, and a witness in the same group who keeps it. */
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
  /** Reader of the stream with the user's token. */
  readonly #reader = new SseReader(0);
  #readerError: string | undefined;
  #isClosed = false;

  constructor(world: World, loss: Loss) {
    userCount += 1;
    this.loss = loss;
    this.#nodes = world.nodes;
    this.#random = world.random;
    this.#uid = `user-${userCount}`;
    this.#witness = `witness-${userCount}`;
    this.#group = `group-${userCount}`;
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
      await client?.waitFor((item) => wordsOf(item).includes("early"));
    if (FOLLOWED.has(this.loss)) await this.#follow();
  }

  async #follow(): Promise<void> {
    const query = `uid=${this.#uid}&token=${TOKEN}&device_flag=0`;
    const path = `/stream/2/${this.#group}/stream-of-${this.#group}?${query}`;
    const port = this.#nodes.clientPortOf(HERE);
    this.#readAgain(port, path).catch((error) => {
      this.#readerError = `${error}`;
    });
    await eventually("the reader to receive the first text", () =>
      this.#reader.text.includes("early"),
    );
  }

  /**
   * Reads the stream until the broker refuses access. Reconnects after a lost connection, as an
   * EventSource does.
   */
  async #readAgain(port: number, path: string): Promise<void> {
    while (!this.#isClosed) {
      try {
        await this.#reader.read(port, path);
      } catch (error) {
        if (!(error instanceof SseRefusal)) throw error;
        if ([401, 403, 404].includes(error.status ?? 0)) return;
        if (error.status !== 503) throw error;
      }
      await pause(RETRY_PAUSE_MS);
    }
  }

  /** Revokes the user's right, and then sends content that the user must not see. */
  async lose(): Promise<void> {
    if (isConnecting(this.loss)) {
      this.#coming = this.#connect(this.#uid);
      await pause(this.#random.below(MAX_PAUSE_MS));
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
    await this.#send(AFTER_RETURN);
  }

  /** Connects. Retries while the node is frozen or has no subscriptions. */
  async #connect(uid: string, at = HERE): Promise<NativeClient> {
    const port = this.#nodes.clientPortOf(at);
    for (;;)
      try {
        return await connectNative(undefined, { uid, token: TOKEN, port });
      } catch (error) {
        if (!(error instanceof NativeClientError)) throw error;
        if (!/unavailable|too_late|^closed_/.test(error.code)) throw error;
        await pause(RETRY_PAUSE_MS);
      }
  }

  /**
   * Waits until all clients have the content they may see. Returns the problems, including content
   * that the user must not see.
   */
  async problems(): Promise<readonly string[]> {
    const { loss } = this;
    await this.#send("last");
    const watcher = this.#watcher as NativeClient; // `open` has set it
    await watcher.waitFor(() => wordsOf(watcher).includes("last"), "the last message");
    this.#client ??= await this.#coming;
    const client = this.#client as NativeClient;
    if (loss === "readded")
      await client.waitFor(() => wordsOf(client).includes("last"), "the last message");
    if (loss === "token" || loss === "kicked") await client.closed;
    const newer = this.#newer;
    await newer?.waitFor(() => wordsOf(newer).includes("last"), "the last message");
    await pause(LATE_MS);
    // A member who returns to an active stream gets its text so far, as every late joiner does.
    const seen = loss === "readded" ? messagesOf(client) : wordsOf(client);
    const problems = seen.filter((word) => word.includes(LATER));
    const seenByWitness = wordsOf(watcher).filter((word) => word === LATER);
    if (seenByWitness.length === 0) problems.push("the witness missed the message");
    if (newer !== undefined && !messagesOf(newer).includes(LATER))
      problems.push("the newer session missed the message");
    if (loss === "kicked")
      await eventually(
        "the reader with the valid token to receive the text",
        () => this.#readerError !== undefined || this.#reader.text.includes(LATER),
      );
    else if (this.#reader.text.includes(LATER))
      problems.push("a reader of the stream saw the text");
    if (this.#readerError !== undefined) problems.push(`the reader: ${this.#readerError}`);
    if (loss === "readded" && !seen.includes(AFTER_RETURN))
      problems.push("a message sent after the return is missing");
    const repeated = seen.filter((word, at) => seen.indexOf(word) !== at);
    if (loss === "readded") problems.push(...repeated);
    return problems.map((problem) => `${this.#uid} (${loss}): ${problem}`);
  }

  close(): void {
    this.#isClosed = true;
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
    const { status, body } = await this.#callUntilAnswered("/event", this.#eventBody(type, data));
    if (status !== 200) throw new Error(`the event ${type} was refused: ${JSON.stringify(body)}`);
  }

  #eventBody(type: string, data: string) {
    return {
      ...{ channel_id: this.#group, channel_type: 2, from_uid: this.#witness },
      ...{ client_msg_no: `stream-of-${this.#group}`, event: { type, data } },
    };
  }

  async #call(path: string, body: object): Promise<void> {
    const { status, body: response } = await this.#callUntilAnswered(path, body);
    if (status !== 200)
      throw new Error(`${path} responded with ${status}: ${JSON.stringify(response)}`);
  }

  /** Calls until the node responds with a status other than 503. */
  async #callUntilAnswered(path: string, body: object) {
    for (;;) {
      const response = await this.#nodes.callOf(ELSEWHERE, path, body);
      if (response.status !== 503) return response;
      await pause(RETRY_PAUSE_MS);
    }
  }
}

const PERSONAL = (uid: string) => ({ channel_id: uid, channel_type: 1 });

/** Returns the texts of everything that the client was pushed. */
function wordsOf(client: NativeClient): readonly string[] {
  const events = client.events.map(({ data }) => data);
  const streams = client.pushesOf("stream").map(({ snapshot }) => snapshot.text);
  return [...messagesOf(client), ...events, ...streams];
}

/** Returns the texts of plain messages that the client was pushed. */
function messagesOf(client: NativeClient): readonly string[] {
  return client.messages
    .filter(({ stream }) => stream === undefined)
    .map(({ payload }) => JSON.parse(Buffer.from(payload).toString()).content);
}

async function playRounds(
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
  const problems: string[] = [];
  let played = 0;
  while (played < rounds) {
    const count = Math.min(PARALLEL_ROUNDS, rounds - played);
    const batch = Array.from(
      { length: count },
      (_, at) => new Round(world, losses[(played + at) % losses.length] as Loss),
    );
    await world.nodes.untilReady();
    await Promise.all(batch.map((round) => round.open()));
    await interrupt(world, async () => {
      await Promise.all(batch.map((round) => round.lose()));
    });
    const results = await Promise.all(batch.map((round) => round.problems()));
    problems.push(...results.flat());
    for (const round of batch) round.close();
    played += count;
  }
  t.same(problems, [], `no user sees forbidden content in ${rounds} rounds`);
}

async function cutSubscriptions({ redis }: World): Promise<void> {
  await Promise.all(redis.map((client) => client.call("CLIENT", "KILL", "TYPE", "pubsub")));
}

const cutOnce: Interruption = async (world, meanwhile) => {
  await cutSubscriptions(world);
  await meanwhile();
};

/** Keeps cutting the subscriptions for `LONG_CUT_MS` and revokes the rights in the meantime. */
const cutForLong: Interruption = async (world, meanwhile) => {
  const until = Date.now() + LONG_CUT_MS;
  let isOver = false;
  const cutting = (async () => {
    while (!isOver) {
      await cutSubscriptions(world);
      await pause(RETRY_PAUSE_MS);
    }
  })();
  await pause(LONG_CUT_MS / 2);
  await meanwhile();
  await pause(Math.max(0, until - Date.now()));
  isOver = true;
  await cutting;
};

const noInterruption: Interruption = (_, meanwhile) => meanwhile();

function freeze(isCut: boolean): Interruption {
  return async (world, meanwhile) => {
    const { nodes, random } = world;
    const ms = 2000 + random.below(4000);
    nodes.signal(HERE, "SIGSTOP");
    try {
      await Promise.all([pause(random.below(ms)).then(meanwhile), pause(ms)]);
      if (isCut) await cutSubscriptions(world);
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
  return { nodes, random, redis: servers.map((server) => server.client()) };
}

t.test(
  "a user who has lost the permission to read sees no later content if the store is a single Redis server",
  async (t) => {
    const server = await startRedis(t);
    const world = await start(t, server.url, [server]);
    const lossesWithoutLogin: readonly Loss[] = [
      ...(["removed", "token", "readded", "replaced"] as const),
      ...(["removed-connecting", "replaced-connecting"] as const),
    ];
    const losses = [...lossesWithoutLogin, "kicked"] as const; // a node without subscriptions accepts no login
    const away = `no forbidden content is shown while subscriptions are cut for ${LONG_CUT_MS} ms`;
    const cases = [
      ["no forbidden content is shown without an interruption", ROUNDS, losses, noInterruption],
      ["no forbidden content is shown when subscriptions are cut once", ROUNDS, losses, cutOnce],
      [away, LONG_ROUNDS, lossesWithoutLogin, cutForLong],
      [
        "no forbidden content is shown when the user's node freezes",
        FROZEN_ROUNDS,
        losses,
        freeze(false),
      ],
      [
        "no forbidden content is shown when the user's node freezes and its subscriptions are cut",
        FROZEN_ROUNDS,
        losses,
        freeze(true),
      ],
    ] as const;
    for (const [title, rounds, losses, interrupt] of cases)
      await t.test(title, (t) => playRounds(t, world, { rounds, losses, interrupt }));
  },
);

t.test(
  "a user who has lost the permission to read sees no later content if the store is a Redis Cluster",
  async (t) => {
    const servers = await startRedisCluster(t);
    const world = await start(t, servers.url, servers.primaries);
    const losses: readonly Loss[] = [
      "removed",
      "readded",
      "replaced",
      "removed-connecting",
      "replaced-connecting",
    ];
    const cases = [
      ["no forbidden content is shown without an interruption", ROUNDS, noInterruption],
      ["no forbidden content is shown when subscriptions are cut once", ROUNDS, cutOnce],
      [
        `no forbidden content is shown while subscriptions are cut for ${LONG_CUT_MS} ms`,
        LONG_ROUNDS,
        cutForLong,
      ],
      ["no forbidden content is shown when the user's node freezes", FROZEN_ROUNDS, freeze(false)],
      [
        "no forbidden content is shown when the user's node freezes and its subscriptions are cut",
        FROZEN_ROUNDS,
        freeze(true),
      ],
    ] as const;
    for (const [title, rounds, interrupt] of cases)
      await t.test(title, (t) => playRounds(t, world, { rounds, losses, interrupt }));
  },
);
