// Streams as they were read last, so that a read of one that stands as before costs no text and gives the same snapshot. Owns the map of them, bounded
// by what they hold: who was put in first leaves first. Redis says each time whether one still stands; nothing here is shown without that.

import type { ChannelKey, StreamSnapshot } from "../../../../broker/model.ts";

export interface CachedStream {
  /** Tells this standing of the stream from every other. */
  readonly version: string;
  readonly snapshot: StreamSnapshot;
}

/** What a snapshot takes beside its strings, about. */
const ENTRY_UNITS = 500;

export class StreamCache {
  readonly #maxUnits: number;
  readonly #entries = new Map<string, CachedStream>();
  /** The one that was active in its channel when it was read last. */
  readonly #active = new Map<ChannelKey, string>();
  #units = 0;

  /** `maxUnits`: UTF-16 units of all strings, about. */
  constructor(maxUnits: number) {
    this.#maxUnits = maxUnits;
  }

  /** Of the channel's stream of that name, or of its active one (""). */
  get(key: ChannelKey, clientMsgNo: string): CachedStream | undefined {
    if (clientMsgNo !== "") return this.#entries.get(nameOf(key, clientMsgNo));
    const name = this.#active.get(key);
    return name === undefined ? undefined : this.#entries.get(name);
  }

  /** Remembers what was read. Returns the one that is remembered: the earlier one if it stood so. */
  put(read: CachedStream): StreamSnapshot {
    const { key, clientMsgNo, state } = read.snapshot;
    const name = nameOf(key, clientMsgNo);
    const before = this.#entries.get(name);
    if (before?.version === read.version) return before.snapshot;
    if (before !== undefined) this.#remove(name, before);
    this.#entries.set(name, read);
    this.#units += unitsOf(read.snapshot);
    if (state === "active") this.#active.set(key, name);
    for (const [oldest, entry] of this.#entries) {
      if (this.#units <= this.#maxUnits) break;
      this.#remove(oldest, entry);
    }
    return read.snapshot;
  }

  #remove(name: string, { snapshot }: CachedStream): void {
    this.#entries.delete(name);
    this.#units -= unitsOf(snapshot);
    if (this.#active.get(snapshot.key) === name)
      this.#active.delete(snapshot.key);
  }
}

function nameOf(key: ChannelKey, clientMsgNo: string): string {
  return `${key}\n${clientMsgNo}`;
}

function unitsOf({
  text,
  startData,
  endData = "",
  notes,
}: StreamSnapshot): number {
  let units = ENTRY_UNITS + text.length + startData.length + endData.length;
  for (const { eventId, type, data } of notes)
    units += eventId.length + type.length + data.length;
  return units;
}
