// The broker and the model of the unread test, to which everything is done alike. State: both, two
// devices of each user, what was done how often. Steps come one after the other; only sends go
// several at once.

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
import { Stage } from "./stage.ts";
import { type ModelChange, type ModelConversation, UnreadModel } from "./unread-model.ts";

const USERS = ["ann", "ben", "cat", "dan"] as const;
const GROUPS: readonly ChannelRef[] = ["g0", "g1", "hall"].map((id) => ({
  id,
  type: GROUP_CHANNEL,
}));
const LARGE = "hall";
const DEVICES = [0, 1];
const MOST_AT_ONCE = 4;
const MOST_UNREAD = 8;

export class UnreadWorld {
  readonly counts: Record<string, number> = {};
  readonly #random: Random;
  readonly #stage: Stage;
  readonly #model = new UnreadModel(USERS);
  #devices = new Map<string, readonly NativeClient[]>();
  /** Pushes of changed conversations that each device had to get. */
  readonly #owed = new Map<NativeClient, number>();
  #sent = 0;
  #lastExpiryMs = 0;

  private constructor(stage: Stage, random: Random) {
    this.#stage = stage;
    this.#random = random;
  }

  static async found(t: Test, random: Random): Promise<UnreadWorld> {
    const sweeping = { JINDOU_STORE_SWEEP_INTERVAL_MS: "100" };
    const stage = await Stage.open(t, sweeping, BUSY_STORE);
    const world = new UnreadWorld(stage, random);
    t.teardown(() => world.#disconnect());
    for (const { id } of GROUPS) {
      const members = USERS.filter(() => random.below(4) > 0);
      await stage.createGroup(id, members, id === LARGE ? 1 : 0);
      world.#model.createGroup(id, members, id === LARGE);
    }
    await world.#connect();
    return world;
  }

  get kills(): number {
    return this.#stage.kills;
  }

  output(): string {
    return this.#stage.output();
  }

  async restart(): Promise<void> {
    this.#disconnect();
    await this.#stage.restart();
    await this.#connect();
  }

  /** Some messages at once, over HTTP or a socket. */
  async send(): Promise<void> {
    const count = 1 + this.#random.below(MOST_AT_ONCE);
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
    if (expireS === 1) this.#lastExpiryMs = expiresAtMs;
    const added = { seq, id, fromUid: uid, redDot, expiresAtMs };
    this.#model.add(channel, added);
  }

  async #sendOverHttp({ uid, channel, redDot, expireS, no }: Draft) {
    const answer = await this.#stage.ok("/message/send", {
      ...wire(channel),
      from_uid: uid,
      client_msg_no: no,
      header: { red_dot: redDot ? 1 : 0 },
      expire: expireS,
      payload: textPayload(no),
    });
    return { seq: answer.message_seq, id: answer.message_id };
  }

  async #sendOnSocket({ uid, channel, redDot, expireS, no }: Draft) {
    const options = { clientMsgNo: no, redDot, expireS };
    const device = this.#random.pick(this.#devicesOf(uid));
    const { messageSeq, messageId } = await device.send(channel, no, options);
    return { seq: messageSeq, id: messageId };
  }

  /** A stream's message counts as one, with a red dot. */
  async stream(): Promise<void> {
    const [uid, channel] = this.#pair();
    const no = this.#newNumber();
    this.#count("stream");
    for (const type of ["Start", "Content", "End"])
      await this.#stage.ok("/event", {
        ...wire(channel),
        from_uid: uid,
        client_msg_no: no,
        event: { type: `___TextMessage${type}`, data: "x", id: type },
      });
    const path = `/stream/${channel.type}/${channel.id}/${no}?uid=${uid}`;
    const { message_seq: seq, message_id: id } = await this.#stage.ok(path);
    const expiresAtMs = Number.POSITIVE_INFINITY;
    const message = { seq, id, fromUid: uid, redDot: true, expiresAtMs };
    this.#model.add(channel, message);
  }

  /**
   * Resolves with what the device was answered and what the user's other device was told;
   * undefined: the change was not certain.
   */
  async changeOnDevice(): Promise<{ readonly own: object; readonly other: object } | undefined> {
    const [uid, channel] = this.#pair();
    const change = this.#randomChange(uid, channel);
    this.#count(`${change.kind} on a device`);
    const at = this.#random.pick(DEVICES);
    const devices = this.#devicesOf(uid);
    const [device, other] = [devices[at], devices[1 - at]];
    if (!device || !other) throw new Error("a user has two devices");
    const own = await this.#certain(async () => {
      const operation = { kind: "conversation", channel, change } as const;
      const { conversation } = await device.request("conversation", operation);
      this.#owe(other);
      return conversation;
    });
    const told = await this.#lastTold(other);
    this.#model.change(uid, channel, { change, nowMs: own.nowMs });
    if (told === undefined || own.isUncertain) return undefined;
    return { own: shape(own.answer), other: shape(told) };
  }

  async changeOverHttp(): Promise<void> {
    const [uid, channel] = this.#pair();
    const change = this.#randomChange(uid, channel);
    this.#count(`${change.kind} over http`);
    const body = { uid, ...wire(channel) };
    const { nowMs } = await this.#certain(() => {
      for (const device of this.#devicesOf(uid)) this.#owe(device);
      if (change.kind === "read") return this.#stage.ok("/conversations/clearUnread", body);
      if (change.kind === "delete") return this.#stage.ok("/conversations/delete", body);
      const { unread } = change;
      return this.#stage.ok("/conversations/setUnread", { ...body, unread });
    });
    const all = { kind: "read", seq: Number.MAX_SAFE_INTEGER } as const;
    const applied = change.kind === "read" ? all : change;
    this.#model.change(uid, channel, { change: applied, nowMs });
  }

  async joinOrLeave(): Promise<void> {
    const uid = this.#random.pick(USERS);
    const channel = this.#random.pick(GROUPS);
    const body = { ...wire(channel), subscribers: [uid] };
    if (this.#model.isMember(uid, channel)) {
      this.#count("leave");
      await this.#stage.ok("/channel/subscriber_remove", body);
      this.#model.leave(uid, channel);
    } else {
      this.#count("join");
      await this.#stage.ok("/channel/subscriber_add", body);
      this.#model.join(uid, channel);
    }
  }

  /** Resolves when no message is left that expires soon. */
  async everythingExpires(): Promise<void> {
    while (Date.now() <= this.#lastExpiryMs) await new Promise((go) => setTimeout(go, 20));
  }

  /** Where lists over HTTP and on a device differ from the model's. */
  async differences(): Promise<readonly object[]> {
    const found: object[] = [];
    for (const uid of USERS) {
      const device = this.#random.pick(this.#devicesOf(uid));
      const { nowMs, answer } = await this.#certain(async () => {
        const http = await this.#stage.ok("/conversation/sync", { uid });
        const page = { limit: 100, offset: 0 };
        const operation = { kind: "conversations", ...page } as const;
        const socket = await device.request("conversations", operation);
        return { http, socket: socket.conversations };
      });
      const wanted = this.#model.list(uid, nowMs);
      const http = answer.http.map(ofJson);
      const socket = answer.socket.map(ofConversation);
      for (const [via, list] of Object.entries({ http, socket }))
        if (JSON.stringify(list) !== JSON.stringify(wanted)) found.push({ uid, via, list, wanted });
    }
    return found;
  }

  /** Asks again while something expires meanwhile: what does no harm to be done twice. */
  async #certain<T>(ask: () => Promise<T>): Promise<Certain<T>> {
    for (let tries = 0; ; tries++) {
      const fromMs = Date.now();
      const answer = await ask();
      const nowMs = Date.now();
      const isUncertain = this.#model.isUncertain(fromMs, nowMs + 1);
      if (!isUncertain || tries === 5) return { answer, nowMs, isUncertain };
    }
  }

  #randomChange(uid: string, channel: ChannelRef): ModelChange {
    const random = this.#random;
    const dice = random.below(10);
    if (dice === 0) return { kind: "delete" };
    if (dice < 5) {
      const unread = random.below(MOST_UNREAD);
      return { kind: "unread", unread };
    }
    const seq = random.below(this.#model.head(uid, channel) + 3);
    return { kind: "read", seq };
  }

  /** A user, and a group of the user's or a conversation with somebody, perhaps with oneself. */
  #pair(): readonly [string, ChannelRef] {
    for (;;) {
      const uid = this.#random.pick(USERS);
      const other = { id: this.#random.pick(USERS), type: PERSON_CHANNEL };
      const channel = this.#random.pick([...GROUPS, other as ChannelRef]);
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
    const { messages } = await this.#stage.ok(`/channel/messages?${query}`);
    return Number(messages[0].timestamp_ms);
  }

  /** A push of a changed conversation has to come to `device`. */
  #owe(device: NativeClient): void {
    this.#owed.set(device, (this.#owed.get(device) ?? 0) + 1);
  }

  /** What it was told last, once it was told all it had to be. */
  async #lastTold(device: NativeClient): Promise<Conversation | undefined> {
    const owed = this.#owed.get(device) ?? 0;
    const told = () => device.pushesOf("conversation");
    await device.waitFor(() => told().length >= owed, `change ${owed}`);
    return told()[owed - 1]?.conversation;
  }

  #devicesOf(uid: string): readonly NativeClient[] {
    return this.#devices.get(uid) ?? [];
  }

  async #connect(): Promise<void> {
    const port = this.#stage.clientPort;
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

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }
}

interface Draft {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly redDot: boolean;
  readonly expireS: number;
  readonly no: string;
}

interface Certain<T> {
  readonly answer: T;
  readonly nowMs: number;
  readonly isUncertain: boolean;
}

function wire({ id, type }: ChannelRef) {
  return { channel_id: id, channel_type: type };
}

// biome-ignore lint/suspicious/noExplicitAny: a body as it came
function ofJson(one: any): ModelConversation {
  return {
    channel: `${one.channel_type}:${one.channel_id}`,
    unread: one.unread,
    readSeq: one.readed_to_msg_seq,
    deletedSeq: one.offset_msg_seq,
    lastSeq: one.last_msg_seq,
  };
}

function ofConversation(one: Conversation): ModelConversation {
  const { unread, readSeq, deletedSeq } = one;
  return {
    channel: `${one.channel.type}:${one.channel.id}`,
    ...{ unread, readSeq, deletedSeq },
    lastSeq: one.last?.messageSeq ?? 0,
  };
}

/** What both devices of a user are told alike. */
function shape(one: Conversation): object {
  return { ...ofConversation(one), headSeq: one.headSeq };
}
