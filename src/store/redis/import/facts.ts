// What a moved row comes to in Redis: facts about single keys. The same facts are written by a move and looked for when it is verified. Pure.

import type { Keys } from "../../../redis/keys.ts";
import type { Arg } from "../../../redis/script.ts";

export interface ImportContext {
  readonly keys: Keys;
  readonly nowMs: number;
  /** When the move began, Unix milliseconds: active streams count as heard of then. */
  readonly beganAtMs: number;
  readonly dedupeWindowMs: number;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

/** Names, members, scores, values. */
export type Items = Arg[];

/** Of a value that ends by itself: how much longer than the rule it is kept, for clocks differ. */
export const SPACE_MS = 60_000;

export interface StreamEntry {
  readonly seq: number;
  /** Names and values in turn. */
  readonly fields: readonly Arg[];
}

export type Fact =
  /** Fields and values in turn. */
  | { readonly kind: "hash"; readonly key: string; readonly items: Arg[] }
  | {
      readonly kind: "set";
      readonly key: string;
      readonly items: Arg[];
      /** Milliseconds until it may be forgotten. */
      readonly keepMs?: number;
    }
  /** Scores and members in turn. */
  | {
      readonly kind: "scores";
      readonly key: string;
      readonly items: Arg[];
      /** Which of two scores of a member stays; NX: the first. */
      readonly stays: "GT" | "LT" | "NX";
      /** Not looked for: others may have changed it. */
      readonly isHint?: boolean;
    }
  | {
      readonly kind: "value";
      readonly key: string;
      readonly value: Arg;
      readonly keepMs?: number;
    }
  /** A value that begins with Unix milliseconds, of which the newest stays. */
  | {
      readonly kind: "newest";
      readonly key: string;
      readonly value: string;
      readonly keepMs: number;
    }
  | { readonly kind: "list"; readonly key: string; readonly items: Arg[] }
  | {
      readonly kind: "entries";
      readonly key: string;
      /** Of the entry before the first one; 0: it need not be there. */
      readonly afterSeq: number;
      readonly entries: StreamEntry[];
      /** 0: for ever. */
      readonly keepMs: number;
    };

/** Joins the facts about one key, so that each is written and looked for in one go. Their order stays within a key. */
export function joined(facts: Iterable<Fact>): readonly Fact[] {
  const found = new Map<string, Fact>();
  for (const fact of facts) {
    const name = `${fact.kind}${fact.kind === "scores" ? fact.stays : ""} ${fact.key}`;
    const before = found.get(name);
    if (before === undefined) found.set(name, copyOf(fact));
    else found.set(name, bothOf(before, fact));
  }
  return [...found.values()];
}

function copyOf(fact: Fact): Fact {
  if (fact.kind === "entries") return { ...fact, entries: [...fact.entries] };
  return "items" in fact ? { ...fact, items: [...fact.items] } : fact;
}

/** Of values the later one. */
function bothOf(first: Fact, next: Fact): Fact {
  if (first.kind === "entries" && next.kind === "entries") {
    first.entries.push(...next.entries);
    return { ...first, keepMs: Math.max(first.keepMs, next.keepMs) };
  }
  if (next.kind === "newest" && first.kind === "newest")
    return timeOf(first.value) > timeOf(next.value) ? first : next;
  if (first.kind === "list" || !("items" in first) || !("items" in next))
    return next;
  first.items.push(...next.items);
  return first;
}

/** Unix milliseconds at which a `newest` value begins. */
export function timeOf(value: string): number {
  return Number.parseInt(value, 10);
}
