// Which channels hold more messages in the database than they keep, or may. Owns their set: those that grew enough since it was taken, and at first
// all, for the limit may have been another one. Asked per channel and checkpoint, never per message.

import type { ChannelKey } from "../../../broker/model.ts";
import type { MemtableChannel } from "../engine/memtable.ts";

/** Messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it. */
const MAX_STEP = 100;

export class TrimQueue {
  /** How many messages a channel keeps; 0: all. */
  readonly keeps: number;
  readonly #step: number;
  /** Undefined: all there are. */
  #channels: Set<ChannelKey> | undefined;

  constructor(keeps: number) {
    this.keeps = keeps;
    this.#step = Math.min(MAX_STEP, Math.ceil(keeps / 10));
  }

  /** To be called with each channel that a checkpoint brought into the database, before it is let go of. */
  grew({ key, flushingHead, flushingLog }: MemtableChannel): void {
    if (this.keeps === 0 || flushingHead <= this.keeps) return;
    const before = flushingHead - flushingLog;
    const step = this.#step;
    if (Math.floor(flushingHead / step) > Math.floor(before / step))
      this.add(key);
  }

  /** The channel is to be looked at next time. */
  add(key: ChannelKey): void {
    this.#channels?.add(key);
  }

  /** The channels to look at, which are not given again; undefined: all there are. */
  take(): ReadonlySet<ChannelKey> | undefined {
    const taken = this.#channels;
    this.#channels = new Set();
    return taken;
  }

  /** What was taken was not looked at to the end. */
  failed(): void {
    this.#channels = undefined;
  }
}
