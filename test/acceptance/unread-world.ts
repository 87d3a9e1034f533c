// The broker and the model of the unread test. Every step is applied to both. Steps run one after
// the other; only sends run in parallel.

import type { Test } from "tap";
import {
  type ChannelRef,
  type Conversation,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../src/broker/model.ts";
import { BUSY_STORE, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import { RestartableBroker } from "./restartable-broker.ts";
import { type ModelChange, type ModelConversation, UnreadModel } from "./unread-model.ts";

const USERS = ["ann", "ben", "cat", "dan"] as const;
const GROUPS: readonly ChannelRef[] = ["g0", "g1", "hall"].map((id) => ({
  id,
  type: GROUP_CHANNEL,
}));
const LARGE = "hall";
const DEVICES = [0, 1];
const MAX_PARALLEL_SENDS = 4;
const MAX_UNREAD = 8;

export class UnreadWorld {
  readonly counts: Record<string, number> = {};
  readonly #random: Random;
  readonly #broker: RestartableBroker;
  readonly #model = new UnreadModel(USERS);
  #devices = new Map<string, readonly NativeClient[]>();
  /** Number of pushes of changed conversations that each device must have received. */
  readonly #expectedPushes = new Map<NativeClient, number>();
  #sent = 0;
  #lastExpiryMs = 0;

  private constructor(broker: RestartableBroker, random: Random) {
    this.#broker = broker;
    this.#random = random;
  }

  static async create(t: Test, random: Random): Promise<UnreadWorld> {
    const sweeping = { JINDOU_STORE_SWEEP_INTERVAL_MS: "100" };
    const broker = await RestartableBroker.open(t, sweeping, BUSY_STORE);
    const world = new UnreadWorld(broker, random);
    t.teardown(() => world.#disconnect());
    for (const { id } of GROUPS) {
      const members = USERS.filter(() => random.below(4) > 0);
      await broker.createGroup(id, members, id === LARGE ? 1 : 0);
      world.#model.createGroup(id, members, id === LARGE);
    }
    await world.#connect();
    return world;
  }

  get kills(): number {
    return this.#broker.kills;
  }

  output(): string {
    return this.#broker.output();
  }

  async restart(): Promise<void> {
    this.#disconnect();
    await this.#broker.restart();
    await this.#connect();
  }

  /** Sends a random number of messages at once, each over HTTP or a socket. */
  async send(): Promise<void> {
    const count = 1 + this.#random.below(MAX_PARALLEL_SENDS);
    const sends = Array.from({ length: count }, () => this.#sendOne());
    await Promise.all(sends);
  }

  async #sendOne(): Promise<void> {
    const random = this.#random;
    const [uid, channel] = this.#pair();
    const redDot = random.below(4) > 0;
    const expireS = random.pick([0, 0, 0, 0, 1, 3600]);
    const isSocket = random.flip();
    this.#count(`send ${isSocket ? "socket" : "http"}`);
    const message = { uid, channel, redDot, expireS, no: this.#newNumber() };
    const { seq, id } = isSocket
      ? await this.#sendOnSocket(message)
      : await this.#sendOverHttp(message);
    const expiresAtMs =
      expireS === 0
        ? Number.POSITIVE_INFINITY
        : (await this.#timeOf(uid, channel, seq)) + expireS * 1000;
    if (expireS === 1) this.#lastExpiryMs = Math.max(this.#lastExpiryMs, expiresAtMs);
    const added = { seq, id, fromUid: uid, redDot, expiresAtMs };
    this.#model.add(channel, added);
  }

  async #sendOverHttp({ uid, channel, redDot, expireS, no }: Draft) {
    const response = await this.#broker.ok("/message/send", {
      ...wire(channel),
      from_uid: uid,
      client_msg_no: no,
      header: { red_dot: redDot ? 1 : 0 },
      expire: expireS,
      payload: textPayload(no),
    });
    return { seq: response.message_seq, id: response.message_id };
  }

  async #sendOnSocket({ uid, channel, redDot, expireS, no }: Draft) {
    const options = { clientMsgNo: no, redDot, expireS };
    const device = this.#random.pick(this.#devicesOf(uid));
    const { messageSeq, messageId } = await device.send(channel, no, options);
    return { seq: messageSeq, id: messageId };
  }

  /** Plays a short stream. Its message counts as one message with a red dot. */
  async stream(): Promise<void> {
    const [uid, channel] = this.#pair();
    const no = this.#newNumber();
    this.#count("stream");
    for (const type of ["Start", "Content", "End"])
      await this.#broker.ok("/event", {
        ...wire(channel),
        from_uid: uid,
        client_msg_no: no,
        event: { type: `___TextMessage${type}`, data: "x", id: type },
      });
    const path = `/stream/${channel.type}/${channel.id}/${no}?uid=${uid}`;
    const { message_seq: seq, message_id: id } = await this.#broker.ok(path);
    const expiresAtMs = Number.POSITIVE_INFINITY;
    const message = { seq, id, fromUid: uid, redDot: true, expiresAtMs };
    this.#model.add(channel, message);
  }

  /**
   * Changes a conversation on a device. Returns the response and the push to the user's other
   * device, or `undefined` if the result depends on a message that expired in the meantime.
   */
  async changeOnDevice(): Promise<{ readonly own: object; readonly pushed: object } | undefined> {
    const [uid, channel] = this.#pair();
    const change = this.#randomChange(uid, channel);
    this.#count(`${change.kind} on a device`);
    const at = this.#random.pick(DEVICES);
    const devices = this.#devicesOf(uid);
    const [device, otherDevice] = [devices[at], devices[1 - at]];
    if (!device || !otherDevice) throw new Error("a user must have two devices");
    const own = await this.#untilCertain(async () => {
      const operation = { kind: "conversation", channel, change } as const;
      const { conversation } = await device.request("conversation", operation);
      this.#expectPush(otherDevice);
      return conversation;
    });
    const pushed = await this.#lastPushed(otherDevice);
    this.#model.change(uid, channel, { change, nowMs: own.nowMs });
    if (pushed === undefined || own.isUncertain) return undefined;
    return { own: shape(own.result), pushed: shape(pushed) };
  }

  async changeOverHttp(): Promise<void> {
    const [uid, channel] = this.#pair();
    const change = this.#randomChange(uid, channel);
    this.#count(`${change.kind} over http`);
    const body = { uid, ...wire(channel) };
    const { nowMs } = await this.#untilCertain(() => {
      for (const device of this.#devicesOf(uid)) this.#expectPush(device);
      if (change.kind === "read") return this.#broker.ok("/conversations/clearUnread", body);
      if (change.kind === "delete") return this.#broker.ok("/conversations/delete", body);
      const { unread } = change;
      return this.#broker.ok("/conversations/setUnread", { ...body, unread });
    });
    const readAll = { kind: "read", seq: Number.MAX_SAFE_INTEGER } as const;
    const applied = change.kind === "read" ? readAll : change;
    this.#model.change(uid, channel, { change: applied, nowMs });
  }

  async joinOrLeave(): Promise<void> {
    const uid = this.#random.pick(USERS);
    const channel = this.#random.pick(GROUPS);
    const body = { ...wire(channel), subscribers: [uid] };
    if (this.#model.isMember(uid, channel)) {
      this.#count("leave");
      await this.#broker.ok("/channel/subscriber_remove", body);
      this.#model.leave(uid, channel);
    } else {
      this.#count("join");
      await this.#broker.ok("/channel/subscriber_add", body);
      this.#model.join(uid, channel);
    }
  }

  /** Resolves when every message with a short time to live has expired. */
  async untilExpired(): Promise<void> {
    while (Date.now() <= this.#lastExpiryMs) await new Promise((done) => setTimeout(done, 20));
  }

  /** Returns where the lists read over HTTP and on a device differ from the model's list. */
  async differences(): Promise<readonly object[]> {
    const differences: object[] = [];
    for (const uid of USERS) {
      const device = this.#random.pick(this.#devicesOf(uid));
      const { nowMs, result } = await this.#untilCertain(async () => {
        const http = await this.#broker.ok("/conversation/sync", { uid });
        const page = { limit: 100, cursor: undefined };
        const operation = { kind: "conversations", ...page } as const;
        const socket = await device.request("conversations", operation);
        return { http, socket: socket.conversations };
      });
      const expected = this.#model.list(uid, nowMs);
      const http = result.http.map(ofJson);
      const socket = result.socket.map(ofConversation);
      for (const [via, list] of Object.entries({ http, socket }))
        if (JSON.stringify(list) !== JSON.stringify(expected))
          differences.push({ uid, via, list, expected });
    }
    return differences;
  }

  /**
   * Repeats a call up to five times while a message expires during the call. The call must be
   * repeatable.
   */
  async #untilCertain<T>(call: () => Promise<T>): Promise<TimedResult<T>> {
    for (let tries = 0; ; tries++) {
      const fromMs = Date.now();
      const result = await call();
      const nowMs = Date.now();
      const isUncertain = this.#model.isUncertain(fromMs, nowMs + 1);
      if (!isUncertain || tries === 5) return { result, nowMs, isUncertain };
    }
  }

  #randomChange(uid: string, channel: ChannelRef): ModelChange {
    const random = this.#random;
    const dice = random.below(10);
    if (dice === 0) return { kind: "delete" };
    if (dice < 5) {
      const unread = random.below(MAX_UNREAD);
      return { kind: "unread", unread };
    }
    const seq = random.below(this.#model.head(uid, channel) + 3);
    return { kind: "read", seq };
  }

  /**
   * Returns a random user with one of the user's groups or a personal channel, which may be the
   * user's own.
   */
  #pair(): readonly [string, ChannelRef] {
    for (;;) {
      const uid = this.#random.pick(USERS);
      const peer = { id: this.#random.pick(USERS), type: PERSON_CHANNEL };
      const channel = this.#random.pick([...GROUPS, peer as ChannelRef]);
      if (this.#model.isMember(uid, channel)) return [uid, channel];
    }
  }

  async #timeOf(uid: string, channel: ChannelRef, seq: number) {
    const query = new URLSearchParams({
      channel_id: channel.id,
      channel_type: String(channel.type),
      ...(channel.type === PERSON_CHANNEL ? { uid } : {}),
      from_seq: String(seq),
      to_seq: String(seq),
    });
    const { messages } = await this.#broker.ok(`/channel/messages?${query}`);
    return Number(messages[0].timestamp_ms);
  }

  /** Records that a changed conversation must be pushed to `device`. */
  #expectPush(device: NativeClient): void {
    this.#expectedPushes.set(device, (this.#expectedPushes.get(device) ?? 0) + 1);
  }

  /** Waits until the device has received every expected push. Returns the last one. */
  async #lastPushed(device: NativeClient): Promise<Conversation | undefined> {
    const count = this.#expectedPushes.get(device) ?? 0;
    const pushed = () => device.pushesOf("conversation");
    await device.waitFor(() => pushed().length >= count, `push ${count}`);
    return pushed()[count - 1]?.conversation;
  }

  #devicesOf(uid: string): readonly NativeClient[] {
    return this.#devices.get(uid) ?? [];
  }

  async #connect(): Promise<void> {
    const port = this.#broker.clientPort;
    for (const uid of USERS) {
      const connect = () => connectNative(undefined, { uid, port });
      this.#devices.set(uid, await Promise.all(DEVICES.map(connect)));
    }
  }

  #disconnect(): void {
    for (const devices of this.#devices.values()) for (const device of devices) device.kill();
  }

  #newNumber(): string {
    this.#sent += 1;
    return `m-${this.#sent}`;
  }

  #count(action: string): void {
    this.counts[action] = (this.counts[action] ?? 0) + 1;
  }
}

interface Draft {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly redDot: boolean;
  readonly expireS: number;
  readonly no: string;
}

interface TimedResult<T> {
  readonly result: T;
  readonly nowMs: number;
  readonly isUncertain: boolean;
}

function wire({ id, type }: ChannelRef) {
  return { channel_id: id, channel_type: type };
}

// biome-ignore lint/suspicious/noExplicitAny: an untyped body
function ofJson(body: any): ModelConversation {
  return {
    channel: `${body.channel_type}:${body.channel_id}`,
    unread: body.unread,
    readSeq: body.readed_to_msg_seq,
    deletedSeq: body.offset_msg_seq,
    lastSeq: body.last_msg_seq,
  };
}

function ofConversation(conversation: Conversation): ModelConversation {
  const { unread, readSeq, deletedSeq } = conversation;
  return {
    channel: `${conversation.channel.type}:${conversation.channel.id}`,
    ...{ unread, readSeq, deletedSeq },
    lastSeq: conversation.last?.messageSeq ?? 0,
  };
}

/** Returns the fields that both devices of a user must agree on. */
function shape(conversation: Conversation): object {
  return { ...ofConversation(conversation), headSeq: conversation.headSeq };
}
