// Parses `last_msg_seqs` of /conversation/sync: `channel_id:channel_type:seq`, joined by `|`. Pure.
// Ids may contain both separators, so the list is parsed with the user's conversations at hand:
// where an entry can be read in several ways, the longest known id counts.

import type { ChannelRef } from "../broker/model.ts";

/** Distinguishes equal ids of different types. */
const nameOf = ({ type, id }: { type: number | string; id: string }) => `${type}:${id}`;

/** Longer than any id can be: 128 characters of two units each. */
const MAX_ID_UNITS = 256;
/** The part of an entry after its id. */
const ENTRY_END = /:(\d{1,3}):(\d{1,16})(?=\||$)/g;

/** The seq the caller has of a channel; 0: none. */
export type LastSeqs = (channel: ChannelRef) => number;

export function readLastSeqs(text: string, known: readonly ChannelRef[]): LastSeqs {
  const names = new Names(known);
  const ends = endsIn(text);
  const seqs = new Map<string, number>();
  let at = 0;
  let next = 0;
  while (at < text.length) {
    while ((ends[next]?.idEnd ?? text.length) < at) next += 1;
    const entry = longestKnown({ text, at, ends, next }, names);
    if (entry !== undefined) seqs.set(entry.name, entry.seq);
    at = (entry?.end ?? barFrom(text, at)) + 1;
  }
  return (channel) => seqs.get(nameOf(channel)) ?? 0;
}

/** A place where an entry may end. */
interface EntryEnd {
  readonly idEnd: number;
  readonly type: number;
  readonly seq: number;
  /** End of its text. */
  readonly end: number;
}

function endsIn(text: string): readonly EntryEnd[] {
  const ends: EntryEnd[] = [];
  for (const { 0: whole, 1: type, 2: seq, index } of text.matchAll(ENTRY_END))
    ends.push({
      idEnd: index,
      type: Number(type),
      seq: Number(seq),
      end: index + whole.length,
    });
  return ends;
}

/** The known names, and the lengths of their ids: most candidates are rejected by length. */
class Names {
  readonly #names: ReadonlySet<string>;
  readonly #lengths: ReadonlySet<number>;

  constructor(known: readonly ChannelRef[]) {
    this.#names = new Set(known.map(nameOf));
    this.#lengths = new Set(known.map(({ id }) => id.length));
  }

  hasLength(units: number): boolean {
    return this.#lengths.has(units);
  }

  has(name: string): boolean {
    return this.#names.has(name);
  }
}

/** The entry that begins at `at`; `next` is the first of its possible ends. */
function longestKnown(
  place: {
    readonly text: string;
    readonly at: number;
    readonly ends: readonly EntryEnd[];
    readonly next: number;
  },
  names: Names,
): { readonly name: string; readonly seq: number; readonly end: number } | undefined {
  const { text, at, ends, next } = place;
  let last = next;
  while ((ends[last]?.idEnd ?? Number.POSITIVE_INFINITY) <= at + MAX_ID_UNITS) last += 1;
  for (let i = last - 1; i >= next; i--) {
    const one = ends[i];
    if (one === undefined || !names.hasLength(one.idEnd - at)) continue;
    const { type, seq, idEnd, end } = one;
    const name = nameOf({ type, id: text.slice(at, idEnd) });
    if (names.has(name)) return { name, seq, end };
  }
  return undefined;
}

/** The next `|`, or the end of the text. */
function barFrom(text: string, from: number): number {
  const at = text.indexOf("|", from);
  return at < 0 ? text.length : at;
}
