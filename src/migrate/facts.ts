// Writes and checks facts. Each row of the folder is converted to facts. A fact states what one key
// in Redis must contain. A script writes a fact idempotently, or checks it. The values in Redis are
// also counted, to find data that the facts do not cover.

import { BrokerError } from "../broker/errors.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { RedisLink } from "../redis/link.ts";
import { type Arg, loadScript } from "../redis/script.ts";

const IMPORT = loadScript(new URL("./lua/import.lua", import.meta.url));

/** Required content of one key in Redis (see `lua/import.lua`). */
export interface Fact {
  readonly key: string;
  readonly how: "HSET" | "SADD" | "ZADD" | "LT" | "SET" | "XADD" | "XNEW";
  readonly items: readonly Arg[];
  /** Minimum time until the key expires, in milliseconds. 0 means that the fact sets no expiry. */
  readonly keepMs: number;
}

export function fact(how: Fact["how"], key: string, items: readonly Arg[], keepMs = 0): Fact {
  return { how, key, items, keepMs };
}

export interface MoveContext {
  readonly link: Pick<RedisLink, "keys" | "isCluster">;
  readonly clock: () => number;
  /** Start of the migration, stored as the time of each active stream's last event. */
  readonly beganAtMs: number;
  readonly dedupeWindowMs: number;
  /** Time for which messages are retained. 0 means no limit. */
  readonly retentionMs: number;
}

/**
 * Time for which a key is kept after its value expires, in milliseconds. It allows for differences
 * between the clocks of the machines.
 */
export const SPACE_MS = 60_000;

export function bytesOf({ items }: Fact): number {
  let bytes = 0;
  for (const item of items) if (typeof item !== "number") bytes += item.length;
  return bytes;
}

/**
 * Merges the facts of each key, in order, so that one call writes or checks a key. If a key has
 * several SET facts, only the last one is used.
 */
function merged(facts: readonly Fact[]): Iterable<Fact> {
  const byKey = new Map<string, Fact & { readonly items: Arg[] }>();
  for (const { key, how, items, keepMs } of facts) {
    const previous = byKey.get(key);
    const maxKeepMs = Math.max(previous?.keepMs ?? 0, keepMs);
    const extended = how === "SET" ? undefined : previous;
    byKey.set(key, {
      ...{ key, how: extended?.how ?? how, keepMs: maxKeepMs },
      items: extended?.items ?? [...items],
    });
    extended?.items.push(...items);
  }
  return byKey.values();
}

/**
 * Kinds of values that are counted. Each kind's list contains the command that counts the values,
 * the displayed name and, for HEXISTS, the field.
 */
const COUNTED_KINDS = {
  devices: ["hlen", "devices"],
  announced: ["exists", "users who were announced as online"],
  managers: ["hlen", "managers' passwords"],
  systemUids: ["scard", "system accounts"],
  signingKeys: ["hlen", "signing keys"],
  webhooks: ["hlen", "webhooks"],
  webhookState: ["hlen", "webhook states"],
  webhookParked: ["hlen", "webhook failures"],
  tokens: ["exists", "access tokens"],
  info: ["hexists", "channels", "info"],
  permanent: ["scard", "subscribers"],
  temporary: ["scard", "temporary subscribers"],
  lists: ["hexists", "channels with lists", "lists"],
  denylist: ["scard", "users on denylists"],
  allowlist: ["scard", "users on allowlists"],
  joinSeqs: ["hlen", "memberships"],
  log: ["xlen", "messages"],
  labels: ["zcard", "labels of imported messages"],
  own: ["hlen", "senders' newest seqs"],
  stream: ["exists", "streams"],
  openStreams: ["zcard", "active streams"],
  positions: ["hlen", "read positions"],
  logs: ["exists", "logs"],
  logProducers: ["hlen", "log producers"],
  logForks: ["scard", "log forks"],
  events: ["xlen", "feed events"],
  onDemandEvents: ["xlen", "session and command events"],
  inboxSeq: ["exists", "command inboxes"],
  inbox: ["xlen", "commands in inboxes"],
} as const;
export type CountedKind = keyof typeof COUNTED_KINDS;
const KIND_NAMES = Object.keys(COUNTED_KINDS) as readonly CountedKind[];

export interface MoveRow extends RowFacts {
  /** Watermark to save when this row and all earlier rows have been processed. */
  readonly at: string;
}

export interface RowFacts {
  readonly facts?: readonly Fact[];
  readonly counts?: readonly CountedKind[];
  /** Kinds of the row's expired values. Redis may still contain them. */
  readonly expired?: readonly CountedKind[];
  readonly sizes?: readonly (readonly [CountedKind, string])[];
}

type Link = Pick<RedisLink, "call" | "run" | "settings">;

const MAX_CALLS = 256;
/**
 * Divisor of the link's limit on calls in flight. A migration uses at most a quarter of the limit.
 */
const CALL_SHARE = 4;

export class MoveTarget {
  readonly #link: Link;
  readonly #until: (key: string) => number;
  readonly #calls: Semaphore;
  #isAnswered = true;

  /** `until` returns a key's fence (see `Lease.fenceOf`). */
  constructor(link: Link, until: (key: string) => number) {
    this.#link = link;
    this.#until = until;
    const share = Math.floor(link.settings.maxInFlight / CALL_SHARE);
    this.#calls = new Semaphore(Math.min(MAX_CALLS, share));
  }

  /** False after a call in `write` has failed, because the call may still reach its server. */
  get isAnswered(): boolean {
    return this.#isAnswered;
  }

  async write(facts: readonly Fact[]): Promise<void> {
    const writes = this.#each(facts, this.#until);
    writes.catch(() => {
      this.#isAnswered = false;
    });
    for (const { reply } of await writes)
      if (reply === null)
        throw new BrokerError("unavailable", {
          message:
            "The migration's lease ended before everything was written. The next attempt resumes the migration",
        });
  }

  async differing(facts: readonly Fact[]): Promise<readonly string[]> {
    const checks = await this.#each(facts, () => "check");
    const differences = checks.filter(({ reply }) => reply !== 1);
    return differences.map(({ key }) => `${JSON.stringify(key)} differs`);
  }

  call(command: string, key: string, ...args: readonly Arg[]): Promise<unknown> {
    return this.#calls.run(() => this.#link.call(command, key, ...args));
  }

  async #each(facts: readonly Fact[], until: (key: string) => Arg) {
    const calls = [...merged(facts)].map(({ key, how, items, keepMs }) =>
      this.#calls.run(async () => {
        const args = [until(key), how, Math.ceil(keepMs), ...items];
        return { key, reply: await this.#link.run(IMPORT, [key], args) };
      }),
    );
    await Promise.allSettled(calls); // no call may be in flight when this function throws
    return Promise.all(calls);
  }
}

const HEAD_FIELDS = [
  ...["seq", "pub", "red", "bare", "last", "info", "lists"],
  ...["imported", "importedAt"],
] as const;

export interface RowCount {
  readonly what: string;
  readonly count: number;
}

export class MoveCounts {
  readonly #target: Pick<MoveTarget, "call">;
  readonly #expected = new Map<CountedKind, number>();
  /** Number of expired values in the folder, by kind. Redis may still contain them. */
  readonly #allowed = new Map<CountedKind, number>();
  readonly #stored = new Map<CountedKind, number>();
  /**
   * Last counted key of each kind. The rows of one key are consecutive, so a comparison with this
   * key prevents a key from being counted twice.
   */
  readonly #lastKey = new Map<CountedKind, string>();

  constructor(target: Pick<MoveTarget, "call">) {
    this.#target = target;
  }

  /** Counts rows. Must be called exactly once for every row, in the order of the rows. */
  async add(rows: readonly MoveRow[]): Promise<void> {
    const reads: Promise<void>[] = [];
    for (const { counts = [], expired = [], sizes = [] } of rows) {
      for (const kind of counts) add(this.#expected, kind, 1);
      for (const kind of expired) add(this.#allowed, kind, 1);
      for (const [kind, key] of sizes) {
        if (this.#lastKey.get(kind) === key) continue;
        this.#lastKey.set(kind, key);
        reads.push(this.#count(kind, key));
      }
    }
    await Promise.all(reads);
  }

  differences(): readonly string[] {
    return KIND_NAMES.flatMap((kind) => {
      const expected = this.#expected.get(kind) ?? 0;
      const max = expected + (this.#allowed.get(kind) ?? 0);
      const stored = this.#stored.get(kind) ?? 0;
      if (stored >= expected && stored <= max) return [];
      const inFolder = stored < expected ? expected : max;
      return [`${COUNTED_KINDS[kind][1]}: the folder has ${inFolder}, Redis ${stored}`];
    });
  }

  storedCounts(): readonly RowCount[] {
    return KIND_NAMES.flatMap((kind) => {
      const count = this.#stored.get(kind) ?? 0;
      return count === 0 ? [] : [{ what: COUNTED_KINDS[kind][1], count }];
    });
  }

  async #count(kind: CountedKind, key: string): Promise<void> {
    const [command, , ...field] = COUNTED_KINDS[kind];
    let count = Number(await this.#target.call(command, key, ...field));
    if (kind === "own" && count > 0) {
      const headValues = await this.#target.call("hmget", key, ...HEAD_FIELDS);
      const exists = (value: unknown) => value !== null;
      count -= (headValues as readonly unknown[]).filter(exists).length; // the reply of HMGET
    }
    add(this.#stored, kind, count);
  }
}

function add(sums: Map<CountedKind, number>, kind: CountedKind, count: number): void {
  sums.set(kind, (sums.get(kind) ?? 0) + count);
}
