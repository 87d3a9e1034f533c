// What rows become in Redis: facts about single keys, which one script writes (idempotently) and
// checks. Also counts what the keys hold, to find data that was not moved. State: a semaphore, the
// counts.

import { BrokerError } from "../broker/errors.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { RedisLink } from "../redis/link.ts";
import { type Arg, loadScript } from "../redis/script.ts";

const IMPORT = loadScript(new URL("./lua/import.lua", import.meta.url));

/** See `lua/import.lua`. */
export interface Fact {
  readonly key: string;
  readonly how: "HSET" | "SADD" | "ZADD" | "LT" | "SET" | "RPUSH" | "XADD" | "XNEW";
  readonly items: readonly Arg[];
  readonly keepMs: number;
}

export function fact(how: Fact["how"], key: string, items: readonly Arg[], keepMs = 0): Fact {
  return { how, key, items, keepMs };
}

/** What the facts of a row depend on. */
export interface MoveContext {
  readonly link: Pick<RedisLink, "keys" | "isCluster">;
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** When the move began, Unix milliseconds; the time of the last event of active streams. */
  readonly beganAtMs: number;
  readonly dedupeWindowMs: number;
  /** 0: no limit. */
  readonly retentionMs: number;
}

/** How much longer than its lifetime an expiring value is kept: clocks differ. */
export const SPACE_MS = 60_000;

/** Approximate; numbers are not counted. */
export function bytesOf({ items }: Fact): number {
  let bytes = 0;
  for (const item of items) if (typeof item !== "number") bytes += item.length;
  return bytes;
}

/** Facts that say all of what their key holds: of several the last one counts. */
const WHOLE: ReadonlySet<Fact["how"]> = new Set(["SET", "RPUSH"]);

/**
 * Merges the facts of one key, in order: a key is written or checked by one call.
 */
function joined(facts: readonly Fact[]): Iterable<Fact> {
  const found = new Map<string, Fact & { readonly items: Arg[] }>();
  for (const { key, how, items, keepMs } of facts) {
    const before = found.get(key);
    const keptMs = Math.max(before?.keepMs ?? 0, keepMs);
    const added = before !== undefined && !WHOLE.has(how) ? before : undefined;
    found.set(key, {
      ...{ key, how: added?.how ?? how, keepMs: keptMs },
      items: added?.items ?? [...items],
    });
    added?.items.push(...items);
  }
  return found.values();
}

/** Parts of the key layout: the command that counts one, and its name for people. */
const PARTS = {
  devices: ["hlen", "devices"],
  managers: ["hlen", "managers' passwords"],
  systemUids: ["scard", "system accounts"],
  tokens: ["exists", "access tokens"],
  info: ["hexists", "channels", "info"],
  permanent: ["scard", "subscribers"],
  temporary: ["scard", "temporary subscribers"],
  lists: ["hexists", "channels with lists", "lists"],
  denylist: ["scard", "denylists"],
  allowlist: ["scard", "allowlists"],
  joinSeqs: ["hlen", "memberships"],
  log: ["xlen", "messages"],
  own: ["hlen", "senders' newest seqs"],
  stream: ["exists", "streams"],
  activeStream: ["exists", "active streams"],
  positions: ["hlen", "read positions"],
  inboxSeq: ["exists", "command inboxes"],
  inbox: ["xlen", "commands in inboxes"],
} as const;
export type Part = keyof typeof PARTS;
const NAMES = Object.keys(PARTS) as readonly Part[];

export interface MoveRow extends RowFacts {
  /** The watermark when everything through this row is done. */
  readonly at: string;
}

export interface RowFacts {
  readonly facts?: readonly Fact[];
  /** The parts that this row adds one to; `expired`: that may still hold it. */
  readonly counts?: readonly Part[];
  readonly expired?: readonly Part[];
  /** Keys to count, once all their rows are taken. */
  readonly sizes?: readonly (readonly [Part, string])[];
}

type Link = Pick<RedisLink, "call" | "run" | "settings">;

const MAX_AT_ONCE = 256;
const SHARE = 4;

/** The Redis that receives the data. */
export class MoveTarget {
  readonly #link: Link;
  readonly #until: (key: string) => number;
  /** Bounds the calls in flight to a share of what the link takes. */
  readonly #calls: Semaphore;
  #isAnswered = true;

  /**
   * `until` returns the fence of a key: Unix milliseconds of its server's clock after which a write
   * is rejected. It throws `unavailable` when the lease was lost.
   */
  constructor(link: Link, until: (key: string) => number) {
    this.#link = link;
    this.#until = until;
    const share = Math.floor(link.settings.maxInFlight / SHARE);
    this.#calls = new Semaphore(Math.min(MAX_AT_ONCE, share));
  }

  /** False: a write got no answer, and may still reach its server. */
  get isAnswered(): boolean {
    return this.#isAnswered;
  }

  /**
   * Resolves when Redis has all of them. Throws as the link does, and `unavailable` when the lease
   * was lost.
   */
  async write(facts: readonly Fact[]): Promise<void> {
    const writes = this.#each(facts, this.#until);
    writes.catch(() => {
      this.#isAnswered = false;
    });
    for (const { reply } of await writes)
      if (reply === null)
        throw new BrokerError("unavailable", {
          message: "The lease of the move ended before this was written",
        });
  }

  /** Names the keys whose facts are missing or differ. Throws as the link does. */
  async differing(facts: readonly Fact[]): Promise<readonly string[]> {
    const looks = await this.#each(facts, () => "check");
    const others = looks.filter(({ reply }) => reply !== 1);
    return others.map(({ key }) => `${JSON.stringify(key)} differs`);
  }

  /** One command. Throws as the link does. */
  ask(command: string, key: string, ...args: readonly Arg[]): Promise<unknown> {
    return this.#calls.run(() => this.#link.call(command, key, ...args));
  }

  async #each(facts: readonly Fact[], until: (key: string) => Arg) {
    const calls = [...joined(facts)].map(({ key, how, items, keepMs }) =>
      this.#calls.run(async () => {
        const args = [until(key), how, Math.ceil(keepMs), ...items];
        return { key, reply: await this.#link.run(IMPORT, [key], args) };
      }),
    );
    await Promise.allSettled(calls); // no call is in flight when this throws
    return Promise.all(calls);
  }
}

/** Fields of a channel's head that are no sender's. */
const HEAD_FIELDS = ["seq", "pub", "red", "bare", "info", "lists"] as const;

/** How much of a part Redis holds. */
export interface RowCount {
  readonly what: string;
  readonly count: number;
}

export class MoveCounts {
  readonly #target: Pick<MoveTarget, "ask">;
  readonly #wanted = new Map<Part, number>();
  /** Expired rows that Redis may still hold. */
  readonly #allowed = new Map<Part, number>();
  readonly #found = new Map<Part, number>();
  /** The last key counted of each part: rows of one key are adjacent, and it is counted once. */
  readonly #last = new Map<Part, string>();

  constructor(target: Pick<MoveTarget, "ask">) {
    this.#target = target;
  }

  /** To be called with every row once, in their order. Throws as the link does. */
  async take(rows: readonly MoveRow[]): Promise<void> {
    const looks: Promise<void>[] = [];
    for (const { counts = [], expired = [], sizes = [] } of rows) {
      for (const part of counts) add(this.#wanted, part, 1);
      for (const part of expired) add(this.#allowed, part, 1);
      for (const [part, key] of sizes) {
        if (this.#last.get(part) === key) continue;
        this.#last.set(part, key);
        looks.push(this.#look(part, key));
      }
    }
    await Promise.all(looks);
  }

  /** Messages about the parts of which Redis holds another number. */
  differences(): readonly string[] {
    return NAMES.flatMap((part) => {
      const wanted = this.#wanted.get(part) ?? 0;
      const most = wanted + (this.#allowed.get(part) ?? 0);
      const found = this.#found.get(part) ?? 0;
      if (found >= wanted && found <= most) return [];
      const had = found < wanted ? wanted : most;
      return [`${PARTS[part][1]}: the folder has ${had}, Redis ${found}`];
    });
  }

  /** Of each part that is not empty. */
  found(): readonly RowCount[] {
    return NAMES.flatMap((part) => {
      const count = this.#found.get(part) ?? 0;
      return count === 0 ? [] : [{ what: PARTS[part][1], count }];
    });
  }

  async #look(part: Part, key: string): Promise<void> {
    const [command, , ...field] = PARTS[part];
    let count = Number(await this.#target.ask(command, key, ...field));
    if (part === "own" && count > 0) {
      const others = await this.#target.ask("hmget", key, ...HEAD_FIELDS);
      const isThere = (one: unknown) => one !== null;
      count -= (others as readonly unknown[]).filter(isThere).length; // HMGET's reply
    }
    add(this.#found, part, count);
  }
}

function add(sums: Map<Part, number>, part: Part, count: number): void {
  sums.set(part, (sums.get(part) ?? 0) + count);
}
