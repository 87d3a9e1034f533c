// Two nodes on their own Redis, senders that repeat every message over HTTP and sockets until it is
// acknowledged, and two users who only read.

import type { Test } from "tap";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import { type ApiResponse, type ChildBroker, spawnBroker, textPayload } from "../support/broker.ts";
import { HistoryChecker, liveRange, Reader, type SentMessage } from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError, textOf } from "../support/native-session.ts";
import { type RedisServer, startRedis } from "../support/redis.ts";

const TIMEOUT_MS = 120_000;
const PAUSE_MS = 20;
const GROUP: ChannelRef = { id: "g", type: 2 };
const BOB: ChannelRef = { id: "bob", type: 1 };
const READERS = ["bob", "dave"];
const WRITERS = ["alice", "carol"];
const SETTINGS = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  JINDOU_REDIS_TIMEOUT_MS: "1000",
};

const pause = (ms = PAUSE_MS) => new Promise((done) => setTimeout(done, ms));

export class AwayWorld {
  readonly redis: RedisServer;
  readonly nodes: readonly [ChildBroker, ChildBroker];
  readonly #checker = new HistoryChecker();
  readonly #clients = new Map<string, NativeClient>();
  readonly #ended: string[] = [];
  readonly #loops: Promise<void>[] = [];
  #isOver = false;

  private constructor(redis: RedisServer, nodes: readonly [ChildBroker, ChildBroker]) {
    this.redis = redis;
    this.nodes = nodes;
  }

  static async open(t: Test): Promise<AwayWorld> {
    const redis = await startRedis(t, [...["--appendonly", "yes", "--appendfsync", "always"]]);
    const settings = { ...SETTINGS, JINDOU_REDIS_URL: redis.url };
    const nodes = await Promise.all([spawnBroker(t, settings), spawnBroker(t, settings)]);
    const world = new AwayWorld(redis, nodes);
    await nodes[0].call("/channel", {
      ...{ channel_id: GROUP.id, channel_type: GROUP.type },
      subscribers: [...READERS, ...WRITERS],
    });
    for (const [at, uid] of [...READERS, ...WRITERS].entries()) await world.#connect(t, uid, at);
    world.#startSending();
    t.teardown(() => {
      world.#isOver = true;
    });
    return world;
  }

  get problems(): HistoryChecker["problems"] {
    return this.#checker.problems;
  }

  get acknowledgedCount(): number {
    return this.#checker.acknowledgedCount;
  }

  /** Returns the users whose connection has ended, each with the close code. */
  endedConnections(): readonly string[] {
    return this.#ended;
  }

  /** Resolves when `count` more messages were acknowledged. */
  async progress(count: number): Promise<void> {
    const target = this.acknowledgedCount + count;
    await until("messages are acknowledged", () => this.acknowledgedCount >= target);
  }

  /** Sends messages until the node refuses one. Returns that response. */
  async untilRefused(node: ChildBroker): Promise<ApiResponse> {
    let response = await this.#post(node, "refused?");
    await until("sends are refused", async () => {
      response = await this.#post(node, "refused?");
      return response.status === 503;
    });
    return response;
  }

  /** Sends a message on the socket of each reader. Returns the error codes, or `ok`. */
  socketCodes(): Promise<readonly string[]> {
    return Promise.all(
      READERS.map((uid) =>
        this.#client(uid)
          .send({ id: "nobody", type: 1 }, "x")
          .then(
            () => "ok",
            (error: unknown) => (error instanceof NativeClientError ? error.code : String(error)),
          ),
      ),
    );
  }

  /**
   * Makes `count` calls at once on each node: GETs of `path`, or sends if `path` is `undefined`.
   * Returns the statuses.
   */
  async flood(count: number, path?: string): Promise<readonly number[]> {
    const call = (node: ChildBroker) =>
      path === undefined ? this.#post(node, "flood") : node.call(path);
    const calls = this.nodes.flatMap((node) => Array.from({ length: count }, () => call(node)));
    return (await Promise.all(calls)).map(({ status }) => status);
  }

  /** Returns the number of commands of both nodes that wait for a reply from Redis. */
  async inFlight(): Promise<number> {
    const pages = await Promise.all(this.nodes.map(({ call }) => call("/metrics")));
    return pages
      .map(({ body }) => /^jindou_redis_commands_in_flight (\d+)$/m.exec(body))
      .reduce((sum, match) => sum + Number(match?.[1] ?? Number.NaN), 0);
  }

  async untilReady(): Promise<void> {
    for (const { call } of this.nodes)
      await until("nodes are ready", async () => {
        return (await call("/readyz")).status === 200;
      });
  }

  /** Resolves when both nodes report every user as online. */
  async untilOnline(): Promise<void> {
    const uids = [...READERS, ...WRITERS];
    for (const { call } of this.nodes)
      await until("all users are online", async () => {
        const { body } = await call("/user/onlinestatus", uids);
        return Array.isArray(body) && body.every(({ online }) => online === 1);
      });
  }

  /**
   * Stops the senders when every message they sent is acknowledged, and checks what the readers
   * were pushed.
   */
  async finish(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#loops);
    for (const uid of READERS)
      for (const channel of uid === "bob" ? [GROUP, BOB] : [GROUP]) await this.#check(uid, channel);
  }

  async #check(uid: string, channel: ChannelRef): Promise<void> {
    const key = channelKey(channel, "alice");
    const reader = new Reader(uid, key);
    const client = this.#client(uid);
    const received = () => client.messages.filter((message) => message.key === key);
    const { headSeq } = await client.history(
      channel.type === 1 ? { id: "alice", type: 1 } : channel,
    );
    await until(`${uid} has every message`, () => (received().at(-1)?.messageSeq ?? 0) >= headSeq);
    for (const message of received()) {
      const shown = { ...message, text: textOf(message) };
      this.#checker.checkRange(reader, liveRange(shown, Date.now()));
    }
    this.#checker.checkEnd(reader);
  }

  async #connect(t: Test, uid: string, at: number): Promise<void> {
    const node = this.nodes[at % 2 === 0 ? 0 : 1];
    const options = { uid, port: node.clientPort, timeoutMs: TIMEOUT_MS };
    const client = await connectNative(t, options);
    this.#clients.set(uid, client);
    void client.closed.then(({ code }) => this.#ended.push(`${uid} ${code}`));
  }

  #client(uid: string): NativeClient {
    const client = this.#clients.get(uid);
    if (client === undefined) throw new Error(`${uid} is not connected`);
    return client;
  }

  /** Sends a message to a channel that is not checked. */
  #post(node: ChildBroker, text: string): Promise<ApiResponse> {
    return node.call("/message/send", {
      ...{ from_uid: "erin", channel_id: "nobody", channel_type: 1 },
      payload: textPayload(text),
    });
  }

  #startSending(): void {
    for (const node of this.nodes)
      for (const channel of [GROUP, BOB]) {
        const name = `http${node.apiPort}`;
        this.#sendRepeatedly("alice", channel, name, async (sending) => {
          const { status, body } = await node.call("/message/send", {
            ...{ from_uid: "alice", payload: textPayload(sending.text) },
            ...{ channel_id: channel.id, channel_type: channel.type },
            client_msg_no: sending.clientMsgNo,
          });
          if (status === 503) return undefined;
          if (status !== 200) throw new Error(JSON.stringify(body));
          return { messageId: body.message_id, messageSeq: body.message_seq };
        });
      }
    for (const uid of WRITERS)
      this.#sendRepeatedly(uid, GROUP, "socket", async ({ text, clientMsgNo }) => {
        try {
          return await this.#client(uid).send(GROUP, text, { clientMsgNo });
        } catch (error) {
          const code = error instanceof NativeClientError ? error.code : "";
          if (code !== "unavailable" && code !== "too_late") throw error;
          return undefined;
        }
      });
  }

  /** Sends one message after the other. Repeats each until it is acknowledged. */
  #sendRepeatedly(
    fromUid: string,
    channel: ChannelRef,
    name: string,
    send: (sending: SentMessage) => Promise<{ messageId: number; messageSeq: number } | undefined>,
  ): void {
    const key = channelKey(channel, fromUid);
    const run = async () => {
      for (let count = 1; !this.#isOver; count++) {
        const clientMsgNo = `${name}-${channel.type}-${count}`;
        const sending = {
          ...{ key, fromUid, clientMsgNo, text: clientMsgNo },
          ...{ noPersist: false, expireS: 0 },
        };
        this.#checker.recordSend(sending, Date.now());
        let ack = await send(sending);
        while (ack === undefined) {
          await pause();
          ack = await send(sending);
        }
        this.#checker.recordAcknowledgement(sending, ack, Date.now());
        await pause();
      }
    };
    this.#loops.push(run());
  }
}

async function until(condition: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${condition}`);
    await pause();
  }
}
