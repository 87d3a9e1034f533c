// One node receives its publications late, or not at all, while its own commands reach Redis at
// once. Sessions on that node are not shown content that was stored after the user was removed, was
// kicked or got a new token on another node. A node also notices that it lost the very last
// publication, although no other publication follows. JINDOU_TEST_LATE_ROUNDS sets the number of
// rounds.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { startRedisProxy } from "../support/redis-proxy.ts";
import { measureStalls } from "../support/stalls.ts";
import { ClusterNodes } from "./cluster-nodes.ts";
import { SseReader } from "./sse-reader.ts";

const ROUNDS = Number(process.env.JINDOU_TEST_LATE_ROUNDS ?? 2);
const DELAY_MS = 1000;
/**
 * Time within which a lost publication must be noticed. It is the sum of one second until the node
 * publishes its next mark (a frame to itself that checks the connection), two seconds by which the
 * mark may be late, and the duration of a resync.
 */
const NOTICED_MS = 1000 + 2000 + 1500;
/** Node that receives publications late, and node that receives all HTTP calls. */
const HERE = 0;
const ELSEWHERE = 1;
const TOKEN = "a-token";
const SECONDARY = 1;
const LATER = "later";
const LOSSES = ["removed", "token", "kicked"] as const;
type Loss = (typeof LOSSES)[number];

t.setTimeout(120_000 + ROUNDS * 60_000);

const redis = await startRedis(t);
const proxy = await startRedisProxy(t, redis.port);
const nodes = await ClusterNodes.start(t, {
  redisUrl: redis.url,
  firstRedisUrl: `redis://127.0.0.1:${proxy.port}`,
  ...{ random: new Random(1), count: 2 },
  settings: {
    JINDOU_AUTH_CLIENTS: "token",
    JINDOU_REDIS_TIMEOUT_MS: "10000",
    JINDOU_CLUSTER_DEAD_AFTER_MS: "20000",
  },
});
let userCount = 0;

async function call(path: string, body: object): Promise<void> {
  const { status, body: response } = await nodes.callOf(ELSEWHERE, path, body);
  if (status !== 200)
    throw new Error(`${path} responded with ${status}: ${JSON.stringify(response)}`);
}

const setToken = (uid: string, token: string) =>
  call("/user/token", { uid, token, device_flag: 0, device_level: 1 });

const connect = (uid: string, at: number, over: object = {}) =>
  connectNative(undefined, {
    ...{ uid, token: TOKEN, port: nodes.clientPortOf(at), ...over },
  });

async function newUser(): Promise<string> {
  userCount += 1;
  const uid = `user-${userCount}`;
  await setToken(uid, TOKEN);
  const device = { device_flag: SECONDARY, device_level: 0 };
  await call("/user/token", { uid, token: TOKEN, ...device });
  return uid;
}

/** A user who loses the right to read, in a group with a user who sends. */
class Scenario {
  readonly loss: Loss;
  readonly uid: string;
  readonly sender: string;
  readonly group: string;
  readonly #channels: readonly { readonly id: string; readonly type: 1 | 2 }[];
  client: NativeClient | undefined;
  readonly reader = new SseReader(0);
  #newer: NativeClient | undefined;

  constructor(loss: Loss, uid: string, sender: string) {
    this.loss = loss;
    this.uid = uid;
    this.sender = sender;
    this.group = `group-of-${uid}`;
    this.#channels = [
      { id: this.group, type: 2 },
      { id: sender, type: 1 },
    ];
  }

  async open(): Promise<void> {
    const subscribers = [this.uid, this.sender];
    const group = { channel_id: this.group, channel_type: 2 };
    await call("/channel", { ...group, subscribers });
    this.client = await connect(this.uid, HERE);
    await this.#stream("___TextMessageStart", "");
    await this.#publish("early");
    const query = `uid=${this.uid}&token=${TOKEN}&device_flag=0`;
    const path = `/stream/2/${this.group}/stream-of-${this.group}?${query}`;
    this.reader.read(nodes.clientPortOf(HERE), path).catch(() => {}); // the broker may end the reader
    await this.client.waitFor(() => this.#pushed.includes("early"), "early");
  }

  /**
   * Revokes the user's right, sends messages that the user must not see, and reads everything the
   * user's session can read. Returns the forbidden texts that the user saw.
   */
  async play(): Promise<readonly string[]> {
    const group = { channel_id: this.group, channel_type: 2 };
    if (this.loss === "token") await setToken(this.uid, "another");
    else if (this.loss === "kicked") this.#newer = await connect(this.uid, ELSEWHERE);
    else
      await call("/channel/subscriber_remove", {
        ...{ ...group, subscribers: [this.uid], temp_subscriber: 0 },
      });
    await this.#publish(LATER);
    const results = await Promise.all(this.#reads().map((read) => textsOf(read)));
    await pause(DELAY_MS + 300);
    const texts = [...results.flat(), ...this.#pushed];
    if (this.loss !== "kicked") texts.push(this.reader.text); // after a kick the reader's token is still valid
    return texts
      .filter((text) => text.includes(LATER))
      .map((text) => `${this.uid} (${this.loss}): ${text}`);
  }

  close(): void {
    this.client?.kill();
    this.#newer?.kill();
    this.reader.drop();
  }

  /**
   * Stores a message and a part of a stream, and also a personal message unless the user was only
   * removed from the group.
   */
  async #publish(text: string): Promise<void> {
    await this.#stream("___TextMessageContent", text);
    for (const { id, type } of this.#channels) {
      if (type === 1 && this.loss === "removed" && text === LATER) continue;
      const address = { channel_id: type === 1 ? this.uid : id, channel_type: type };
      await call("/message/send", {
        ...{ ...address, from_uid: this.sender, payload: textPayload(text) },
      });
    }
  }

  #stream(type: string, data: string): Promise<void> {
    return call("/event", {
      ...{ channel_id: this.group, channel_type: 2, from_uid: this.sender },
      ...{ client_msg_no: `stream-of-${this.group}`, event: { type, data } },
    });
  }

  /** Starts every kind of read that returns stored content. */
  #reads(): readonly Promise<unknown>[] {
    const client = this.client as NativeClient; // `open` has set it
    const [group] = this.#channels;
    if (group === undefined) throw new Error("the group is missing");
    const reads: Promise<unknown>[] = [
      ...this.#channels.map((channel) => client.history(channel)),
      client.stream(group, `stream-of-${this.group}`),
      client.conversations(),
    ];
    return this.loss === "removed" ? [...reads, this.#pushedOnResume()] : reads;
  }

  /** Returns what a new session of the removed member is pushed when it resumes. */
  async #pushedOnResume(): Promise<unknown> {
    const resume = this.#channels.map((channel) => ({ channel, lastSeq: 0 }));
    const client = await connect(this.uid, HERE, { resume, flag: SECONDARY });
    await client.ping();
    client.kill();
    return client.pushes;
  }

  get #pushed(): readonly string[] {
    return textsIn(this.client?.pushes ?? []);
  }
}

/**
 * Returns the texts in the result of a read. Returns no texts if the read was refused or the
 * session ended.
 */
async function textsOf(read: Promise<unknown>): Promise<readonly string[]> {
  try {
    return textsIn(await read);
  } catch (error) {
    if (error instanceof NativeClientError) return [];
    throw error;
  }
}

/** Returns all texts within the value, including those of payloads. */
function textsIn(value: unknown): readonly string[] {
  if (typeof value === "string") return [value];
  if (value instanceof Uint8Array) return [Buffer.from(value).toString()];
  if (typeof value !== "object" || value === null) return [];
  return Object.values(value).flatMap(textsIn);
}

t.test(
  "a session cannot read new content after a removal, kick or token change, even before its node has received the event",
  async (t) => {
    for (let round = 0; round < ROUNDS; round++) {
      const scenarios: Scenario[] = [];
      for (const loss of LOSSES)
        scenarios.push(new Scenario(loss, await newUser(), await newUser()));
      await Promise.all(scenarios.map((scenario) => scenario.open()));
      proxy.delaySubscribers(DELAY_MS);
      const leaks = await Promise.all(scenarios.map((scenario) => scenario.play()));
      proxy.delaySubscribers(0);
      t.same(leaks.flat(), [], `no forbidden text is shown in round ${round + 1}`);
      for (const scenario of scenarios) scenario.close();
      await nodes.untilReady();
    }
  },
);

/**
 * Loses the last publication with `lose`, and asserts that the publication takes effect within
 * `NOTICED_MS` all the same.
 */
async function assertNoticed(t: Test, lose: (uid: string) => void): Promise<void> {
  for (const publication of ["a personal message", "a kick"] as const) {
    const [uid, sender] = [await newUser(), await newUser()];
    const client = await connect(uid, HERE);
    await client.ping();
    const stalls = measureStalls(t);
    lose(uid);
    await pause(50); // so that the fault takes effect before the publication
    const since = performance.now();
    if (publication === "a kick") {
      await setToken(uid, "another");
      await client.closed;
    } else {
      const address = { channel_id: uid, channel_type: 1, from_uid: sender };
      await call("/message/send", { ...address, payload: textPayload("last") });
      await client.waitFor(() => textsIn(client.pushes).some(isLast), "last");
    }
    const tookMs = performance.now() - since;
    t.ok(
      tookMs < NOTICED_MS + 10 * stalls.totalMs(),
      `${publication} takes effect after ${Math.round(tookMs)} ms`,
    );
    client.kill();
    await nodes.untilReady();
  }
}

const isLast = (text: string) => text.includes('"last"');

t.test(
  "a message and a kick take effect within 4.5 seconds if the node's subscriber connection to Redis goes silent",
  async (t) => {
    await assertNoticed(t, () => proxy.silenceSubscribers());
  },
);

t.test(
  "a message and a kick take effect within 4.5 seconds if the node has lost its subscription to the user's topic",
  async (t) => {
    await assertNoticed(t, (uid) => proxy.unsubscribe(`jd:{u:${uid}}:t`));
  },
);
