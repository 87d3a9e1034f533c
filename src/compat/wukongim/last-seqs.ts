// Parses the `last_msg_seqs` field of /conversation/sync. The field consists of entries
// `channel_id:channel_type:seq`, joined by `|`. Ids may contain both separators. If an entry can be
// read in several ways, the longest id among the user's conversations is used.

import type { ChannelRef } from "../../broker/model.ts";
import { TimeSlice } from "../../lib/time-slice.ts";

const nameOf = ({ type, id }: { type: number | string; id: string }) => `${type}:${id}`;

/** Maximum length of an id: 128 characters of up to two UTF-16 code units. */
const MAX_ID_UNITS = 256;
const ENTRY_END = /:(\d{1,3}):(\d{1,16})(?=\||$)/g;

/**
 * Function that returns the seq of the last message that the caller has in a channel, or 0 if the
 * caller has no message of the channel.
 */
export type LastSeqs = (channel: ChannelRef) => number;

/** Parses the entries. Ignores entries of channels that are not in `channels`. */
export async function readLastSeqs(
  text: string,
  channels: readonly ChannelRef[],
): Promise<LastSeqs> {
  const slice = new TimeSlice();
  const names = new ChannelNames(channels);
  const ends = await endsIn(text, slice);
  const seqs = new Map<string, number>();
  let at = 0;
  let firstEnd = 0;
  while (at < text.length) {
    if (slice.shouldYield()) await slice.yield();
    while ((ends[firstEnd]?.idEnd ?? text.length) < at) firstEnd += 1;
    const entry = longestEntry({ text, at, ends, firstEnd }, names);
    if (entry !== undefined) seqs.set(entry.name, entry.seq);
    at = (entry?.end ?? barFrom(text, at)) + 1;
  }
  return (channel) => seqs.get(nameOf(channel)) ?? 0;
}

interface EntryEnd {
  readonly idEnd: number;
  readonly type: number;
  readonly seq: number;
  readonly end: number;
}

async function endsIn(text: string, slice: TimeSlice): Promise<readonly EntryEnd[]> {
  const ends: EntryEnd[] = [];
  for (const { 0: match, 1: type, 2: seq, index } of text.matchAll(ENTRY_END)) {
    if (slice.shouldYield()) await slice.yield();
    ends.push({
      idEnd: index,
      type: Number(type),
      seq: Number(seq),
      end: index + match.length,
    });
  }
  return ends;
}

/**
 * Set of channel names. Most names that are not in the set can be rejected by the length of the id.
 */
class ChannelNames {
  readonly #names: ReadonlySet<string>;
  readonly #lengths: ReadonlySet<number>;
  readonly #lengthsWithColon: ReadonlySet<number>;

  constructor(channels: readonly ChannelRef[]) {
    this.#names = new Set(channels.map(nameOf));
    const lengthsOf = (refs: readonly ChannelRef[]) => new Set(refs.map(({ id }) => id.length));
    this.#lengths = lengthsOf(channels);
    this.#lengthsWithColon = lengthsOf(channels.filter(({ id }) => id.includes(":")));
  }

  hasLength(units: number, hasColon: boolean): boolean {
    return (hasColon ? this.#lengthsWithColon : this.#lengths).has(units);
  }

  has(name: string): boolean {
    return this.#names.has(name);
  }
}

/**
 * Returns the longest entry that begins at `at` and whose channel is in `names`. `firstEnd` is the
 * index in `ends` of the first end at or after `at`.
 */
function longestEntry(
  input: {
    readonly text: string;
    readonly at: number;
    readonly ends: readonly EntryEnd[];
    readonly firstEnd: number;
  },
  names: ChannelNames,
): { readonly name: string; readonly seq: number; readonly end: number } | undefined {
  const { text, at, ends, firstEnd } = input;
  let last = firstEnd;
  while ((ends[last]?.idEnd ?? Number.POSITIVE_INFINITY) <= at + MAX_ID_UNITS) last += 1;
  for (let i = last - 1; i >= firstEnd; i--) {
    const entryEnd = ends[i];
    // An id that is longer than the shortest candidate contains the end of that candidate, and
    // therefore a colon.
    if (entryEnd === undefined || !names.hasLength(entryEnd.idEnd - at, i > firstEnd)) continue;
    const { type, seq, idEnd, end } = entryEnd;
    const name = nameOf({ type, id: text.slice(at, idEnd) });
    if (names.has(name)) return { name, seq, end };
  }
  return undefined;
}

function barFrom(text: string, from: number): number {
  const at = text.indexOf("|", from);
  return at < 0 ? text.length : at;
}
