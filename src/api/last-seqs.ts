// The list of what a caller of /conversation/sync has already: `channel_id:channel_type:seq`, joined by `|`. Pure. Ids may contain both signs, so
// the list cannot be taken apart without knowing them: of several readings the longest id that the user has a conversation with counts.

import type { ChannelRef } from "../broker/model.ts";

/** An id and its type, so that equal ids of different types differ. */
const nameOf = ({ type, id }: { type: number | string; id: string }) =>
  `${type}:${id}`;

/** Longer than any id can be: 128 characters of two units each. */
const MAX_ID_UNITS = 256;
/** The part of an entry behind its id. */
const ENTRY_END = /:(\d{1,3}):(\d{1,16})(?=\||$)/g;

/** What the caller has of a channel; 0: nothing. */
export type LastSeqs = (channel: ChannelRef) => number;

export function readLastSeqs(
  text: string,
  known: readonly ChannelRef[],
): LastSeqs {
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

/** Where an entry may end, if one begins before it. */
interface EntryEnd {
  readonly idEnd: number;
  readonly type: number;
  readonly seq: number;
  /** Where its text ends. */
  readonly end: number;
}

function endsIn(text: string): readonly EntryEnd[] {
  const ends: EntryEnd[] = [];
  for (const { 0: whole, 1: type, 2: seq, index } of text.matchAll(ENTRY_END))
    ends.push({
      ...{ idEnd: index, end: index + whole.length },
      ...{ type: Number(type), seq: Number(seq) },
    });
  return ends;
}

/** The names that count, and how long their ids are: most of what might be one need not even be cut out. */
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

/** The entry that begins at `at`; `next` is the first end that may be its. */
function longestKnown(
  place: {
    readonly text: string;
    readonly at: number;
    readonly ends: readonly EntryEnd[];
    readonly next: number;
  },
  names: Names,
):
  | { readonly name: string; readonly seq: number; readonly end: number }
  | undefined {
  const { text, at, ends, next } = place;
  let last = next;
  while ((ends[last]?.idEnd ?? Number.POSITIVE_INFINITY) <= at + MAX_ID_UNITS)
    last += 1;
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
