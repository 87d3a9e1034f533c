// Sends and receives `typing` events. Owns the time of the last event that this user sent in each
// channel, and a time limit for each user who is typing, because the event that ends typing may get
// lost.

import { type ChannelKey, type ChannelRef, channelKey } from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { ReceivedEvent, TypingChange } from "./api.ts";
import { now, timeLimit } from "./waiting.ts";

interface TypingPorts {
  readonly uid: string;
  emit(channel: ChannelRef, type: string, data: string): Promise<unknown>;
  changed(change: TypingChange): void;
}

const TYPE = "typing";
/** Data of the event that ends typing. */
const STOP = "stop";
/** Minimum time after which an event is repeated while the user keeps typing in a channel. */
const REPEAT_MS = 3000;
/** Time without an event after which a user is treated as no longer typing. */
const TIMEOUT_MS = 6000;
const MAX_CHANNELS = 1000;
/** Maximum number of users who are typing at the same time, counted once per channel. Further users are ignored. */
const MAX_USERS = 1000;

export class Typing {
  readonly #ports: TypingPorts;
  #sentAt = new BoundedMap<ChannelKey, number>(MAX_CHANNELS);
  /** Functions that cancel the users' time limits, by channel and user. */
  readonly #limits = new Map<string, () => void>();

  constructor(ports: TypingPorts) {
    this.#ports = ports;
  }

  report(channel: ChannelRef, isTyping: boolean): void {
    const key = channelKey(channel, this.#ports.uid);
    const sentAt = this.#sentAt.get(key);
    if (isTyping ? now() - (sentAt ?? -REPEAT_MS) < REPEAT_MS : sentAt === undefined) return;
    if (isTyping) this.#sentAt.renew(key, now());
    else this.#sentAt.delete(key);
    this.#ports.emit(channel, TYPE, isTyping ? "" : STOP).catch(() => undefined);
  }

  /**
   * Makes the next report send an event, because receivers treat a message as the end of typing.
   */
  sent(channel: ChannelRef): void {
    this.#sentAt.delete(channelKey(channel, this.#ports.uid));
  }

  opened(): void {
    this.#sentAt = new BoundedMap(MAX_CHANNELS);
  }

  received({ channel, fromUid, type, data }: ReceivedEvent): void {
    if (type !== TYPE || fromUid === this.#ports.uid) return;
    if (data === STOP) return this.ended(channel, fromUid);
    const name = this.#nameOf(channel, fromUid);
    const stop = this.#limits.get(name);
    if (stop === undefined && this.#limits.size >= MAX_USERS) return;
    stop?.();
    this.#limits.set(
      name,
      timeLimit(TIMEOUT_MS, () => this.ended(channel, fromUid)),
    );
    if (stop === undefined) this.#ports.changed({ channel, uid: fromUid, isTyping: true });
  }

  ended(channel: ChannelRef, uid: string): void {
    const name = this.#nameOf(channel, uid);
    const stop = this.#limits.get(name);
    if (stop === undefined) return;
    stop();
    this.#limits.delete(name);
    this.#ports.changed({ channel, uid, isTyping: false });
  }

  close(): void {
    for (const stop of this.#limits.values()) stop();
    this.#limits.clear();
  }

  #nameOf(channel: ChannelRef, uid: string): string {
    return `${channelKey(channel, this.#ports.uid)}\n${uid}`;
  }
}
