// Counts the messages and events that were sent to each channel through this node in the last 15
// minutes, for the list of the busiest channels. State: at most `MAX_CHANNELS` counters, regardless
// of the traffic.
//
// A counter gains one credit for each message or event that it counts. If all counters are in use,
// each message or event for a channel without a counter causes the next counter in a ring to be
// checked. If the checked counter has credit and was used in the last 15 minutes, it loses one
// credit. Otherwise, it is reassigned to the channel. A channel that receives more than the
// fraction 1/`MAX_CHANNELS` of all messages and events therefore keeps its counter [Misra, Gries
// 1982]. A channel that lost its counter is later counted from 0 again.

import type { ChannelKey } from "./model.ts";

const MAX_CHANNELS = 1000;
const WINDOW_MINUTES = 15;
const MS_PER_MINUTE = 60_000;

export interface BusyChannel {
  readonly key: ChannelKey;
  readonly messages: number;
  readonly events: number;
}

interface Counter {
  key: ChannelKey;
  credit: number;
  /** Minute to which `newestMessages` and `newestEvents` belong (see `advance`). */
  minute: number;
  /** Counts of `minute`. */
  newestMessages: number;
  newestEvents: number;
  /** Minute in which the counter last counted a message or an event. */
  countedMinute: number;
  /**
   * Counts of the 14 minutes before `minute`, each at the index of its minute modulo
   * `WINDOW_MINUTES`. The slot of `minute` contains 0.
   */
  readonly messages: Uint32Array;
  readonly events: Uint32Array;
}

export class ChannelActivity {
  readonly #counters = new Map<ChannelKey, Counter>();
  readonly #ring: Counter[] = [];
  readonly #now: () => number;
  #hand = 0;

  /** `now` reads a monotonic clock, in milliseconds. */
  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  /** Time span of the counts, in seconds. */
  get windowS(): number {
    return WINDOW_MINUTES * 60;
  }

  message(key: ChannelKey): void {
    const counter = this.#counterOf(key);
    if (counter !== undefined) counter.newestMessages += 1;
  }

  event(key: ChannelKey): void {
    const counter = this.#counterOf(key);
    if (counter !== undefined) counter.newestEvents += 1;
  }

  /** Returns the channels with the most messages and events, busiest first. */
  busiest(limit: number): readonly BusyChannel[] {
    const minute = this.#minute();
    const channels = this.#ring.map((counter) => {
      advance(counter, minute);
      return {
        key: counter.key,
        messages: counter.newestMessages + sum(counter.messages),
        events: counter.newestEvents + sum(counter.events),
      };
    });
    const size = ({ messages, events }: BusyChannel) => messages + events;
    return channels
      .filter((channel) => size(channel) > 0)
      .sort((a, b) => size(b) - size(a))
      .slice(0, limit);
  }

  #minute(): number {
    return Math.floor(this.#now() / MS_PER_MINUTE);
  }

  #counterOf(key: ChannelKey): Counter | undefined {
    const minute = this.#minute();
    const counter = this.#counters.get(key) ?? this.#add(key, minute);
    if (counter === undefined) return undefined;
    counter.credit += 1;
    counter.countedMinute = minute;
    advance(counter, minute);
    return counter;
  }

  #add(key: ChannelKey, minute: number): Counter | undefined {
    if (this.#ring.length < MAX_CHANNELS) {
      const counter = {
        key,
        ...{ credit: 0, minute, newestMessages: 0, newestEvents: 0, countedMinute: minute },
        messages: new Uint32Array(WINDOW_MINUTES),
        events: new Uint32Array(WINDOW_MINUTES),
      };
      this.#ring.push(counter);
      this.#counters.set(key, counter);
      return counter;
    }
    this.#hand = (this.#hand + 1) % MAX_CHANNELS;
    const counter = this.#ring[this.#hand];
    if (counter === undefined) return undefined; // cannot happen, because the ring is full
    const isIdle = minute - counter.countedMinute >= WINDOW_MINUTES;
    if (counter.credit > 0 && !isIdle) {
      counter.credit -= 1;
      return undefined;
    }
    this.#counters.delete(counter.key);
    this.#counters.set(key, counter);
    counter.key = key;
    counter.credit = 0;
    counter.minute = minute;
    counter.newestMessages = 0;
    counter.newestEvents = 0;
    counter.messages.fill(0);
    counter.events.fill(0);
    return counter;
  }
}

/** Moves a counter to `minute`, and clears the slots that it passes. */
function advance(counter: Counter, minute: number): void {
  if (minute === counter.minute) return;
  const slot = counter.minute % WINDOW_MINUTES;
  counter.messages[slot] = counter.newestMessages;
  counter.events[slot] = counter.newestEvents;
  counter.newestMessages = 0;
  counter.newestEvents = 0;
  const passed = Math.min(minute - counter.minute, WINDOW_MINUTES);
  for (let at = 1; at <= passed; at += 1) {
    const passedSlot = (counter.minute + at) % WINDOW_MINUTES;
    counter.messages[passedSlot] = 0;
    counter.events[passedSlot] = 0;
  }
  counter.minute = minute;
}

function sum(counts: Uint32Array): number {
  return counts.reduce((total, count) => total + count, 0);
}
