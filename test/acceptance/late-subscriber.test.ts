// One node hears its topics late, or not at all, while its commands reach Redis at once. Nobody who
// reads there sees what was stored after a removal, a kick or a token change was answered elsewhere
// (I3); and where the last thing that was published was lost, it is noticed though nothing follows
// (I6). JINDOU_TEST_LATE_ROUNDS sets the rounds.

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
/** A mark each second, two that it may take, and what a resync takes. */
const NOTICED_MS = 1000 + 2000 + 1500;
/** The node that hears late, and that of all calls. */
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
let names = 0;

async function call(path: string, body: object): Promise<void> {
  const { status, body: answer } = await nodes.callOf(ELSEWHERE, path, body);
  if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(answer)}`);
}

const setToken = (uid: string, token: string) =>
  call("/user/token", { uid, token, device_flag: 0, device_level: 1 });

const connect = (uid: string, at: number, over: object = {}) =>
  connectNative(undefined, {
    ...{ uid, token: TOKEN, port: nodes.clientPortOf(at), ...over },
  });

async function newUser(): Promise<string> {
  names += 1;
  const uid = `user-${names}`;
  await setToken(uid, TOKEN);
  const device = { device_flag: SECONDARY, device_level: 0 };
  await call("/user/token", { uid, token: TOKEN, ...device });
  return uid;
}

/** A user who loses a right, in a group with one who sends. */
class Scene {
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
    await this.#tell("early");
    const query = `uid=${this.uid}&token=${TOKEN}&device_flag=0`;
    const path = `/stream/2/${this.group}/stream-of-${this.group}?${query}`;
    this.reader.read(nodes.clientPortOf(HERE), path).catch(() => {}); // it may be cut
    await this.client.waitFor(() => this.#pushed.includes("early"), "early");
  }

  /**
   * Takes the right away, sends what is not for the user, and has the user's session read all it
   * can. Gives what it saw of that.
   */
  async play(): Promise<readonly string[]> {
    const group = { channel_id: this.group, channel_type: 2 };
    if (this.loss === "token") await setToken(this.uid, "another");
    else if (this.loss === "kicked") this.#newer = await connect(this.uid, ELSEWHERE);
    else
      await call("/channel/subscriber_remove", {
        ...{ ...group, subscribers: [this.uid], temp_subscriber: 0 },
      });
    await this.#tell(LATER);
    const saw = await Promise.all(this.#reads().map((read) => shownBy(read)));
    await pause(DELAY_MS + 300);
    const wrong = [...saw.flat(), ...this.#pushed];
    if (this.loss !== "kicked") wrong.push(this.reader.text); // a reader's token is still right
    return wrong
      .filter((text) => text.includes(LATER))
      .map((text) => `${this.uid} (${this.loss}): ${text}`);
  }

  close(): void {
    this.client?.kill();
    this.#newer?.kill();
    this.reader.drop();
  }

  /** Stores a message, a part of a stream, and where a session ends a personal message. */
  async #tell(text: string): Promise<void> {
    await this.#stream("___TextMessageContent", text);
    for (const { id, type } of this.#channels) {
      if (type === 1 && this.loss === "removed" && text === LATER) continue;
      const to = { channel_id: type === 1 ? this.uid : id, channel_type: type };
      await call("/message/send", {
        ...{ ...to, from_uid: this.sender, payload: textPayload(text) },
      });
    }
  }

  #stream(type: string, data: string): Promise<void> {
    return call("/event", {
      ...{ channel_id: this.group, channel_type: 2, from_uid: this.sender },
      ...{ client_msg_no: `stream-of-${this.group}`, event: { type, data } },
    });
  }

  /** All that shows stored content. */
  #reads(): readonly Promise<unknown>[] {
    const client = this.client as NativeClient; // it is open
    const [group] = this.#channels;
    if (group === undefined) throw new Error("no group");
    const reads: Promise<unknown>[] = [
      ...this.#channels.map((channel) => client.history(channel)),
      client.stream(group, `stream-of-${this.group}`),
      client.conversations(),
    ];
    return this.loss === "removed" ? [...reads, this.#resumed()] : reads;
  }

  /** What another session of a removed member is shown that comes now. */
  async #resumed(): Promise<unknown> {
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

/** The texts in what a read shows; none where it is refused, or the session ended. */
async function shownBy(read: Promise<unknown>): Promise<readonly string[]> {
  try {
    return textsIn(await read);
  } catch (error) {
    if (error instanceof NativeClientError) return [];
    throw error;
  }
}

/** All texts within, those of payloads included. */
function textsIn(value: unknown): readonly string[] {
  if (typeof value === "string") return [value];
  if (value instanceof Uint8Array) return [Buffer.from(value).toString()];
  if (typeof value !== "object" || value === null) return [];
  return Object.values(value).flatMap(textsIn);
}

t.test("what is read while the removal is on its way", async (t) => {
  for (let round = 0; round < ROUNDS; round++) {
    const scenes: Scene[] = [];
    for (const loss of LOSSES) scenes.push(new Scene(loss, await newUser(), await newUser()));
    await Promise.all(scenes.map((scene) => scene.open()));
    proxy.delay(DELAY_MS);
    const wrong = await Promise.all(scenes.map((scene) => scene.play()));
    proxy.delay(0);
    t.same(wrong.flat(), [], `round ${round + 1}`);
    for (const scene of scenes) scene.close();
    await nodes.untilReady();
  }
});

/** What is lost is the last of all; gives the milliseconds until it had its effect. */
async function lostLast(t: Test, lose: (uid: string) => void): Promise<void> {
  for (const what of ["a personal message", "a kick"] as const) {
    const [uid, sender] = [await newUser(), await newUser()];
    const client = await connect(uid, HERE);
    await client.ping();
    const stalls = measureStalls(t);
    lose(uid);
    await pause(50); // Redis has it before what follows
    const since = performance.now();
    if (what === "a kick") {
      await setToken(uid, "another");
      await client.closed;
    } else {
      const to = { channel_id: uid, channel_type: 1, from_uid: sender };
      await call("/message/send", { ...to, payload: textPayload("last") });
      await client.waitFor(() => textsIn(client.pushes).some(isLast), "last");
    }
    const tookMs = performance.now() - since;
    t.ok(tookMs < NOTICED_MS + 10 * stalls.totalMs(), `${what}: ${Math.round(tookMs)} ms`);
    client.kill();
    await nodes.untilReady();
  }
}

const isLast = (text: string) => text.includes('"last"');

t.test("the last publication was lost with the connection", async (t) => {
  await lostLast(t, () => proxy.silence());
});

t.test("the last publication was lost with its subscription", async (t) => {
  await lostLast(t, (uid) => proxy.unsubscribe(`jd:{u:${uid}}:t`));
});
