// Creates, parses and checks scrypt password hashes. State: the running and waiting checks. The
// number of each is limited, because a check needs a thread from the pool that also writes to disk,
// and 16 MiB of memory with the default cost.

import { randomBytes, scrypt, timingSafeEqual } from "node:crypto";
import { BrokerError } from "./errors.ts";

const COST = { N: 16_384, r: 8, p: 1 };
const SALT_BYTES = 16;
const HASH_BYTES = 32;
const MAX_MEMORY_BYTES = 256 * 1024 * 1024;
const FORM =
  /^scrypt\$(\d{1,7})\$(\d{1,2})\$(\d{1,2})\$([A-Za-z0-9+/]+={0,2})\$([A-Za-z0-9+/]+={0,2})$/;

interface Cost {
  readonly N: number;
  readonly r: number;
  readonly p: number;
}

export interface PasswordHash extends Cost {
  readonly salt: Uint8Array;
  readonly hash: Uint8Array;
}

/** Returns the hash of a password as `scrypt$N$r$p$salt$hash`, with salt and hash in base64. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES);
  const hash = await derive(password, { ...COST, salt }, HASH_BYTES);
  const parts = [COST.N, COST.r, COST.p, salt.toString("base64")];
  return ["scrypt", ...parts, hash.toString("base64")].join("$");
}

export function parsePasswordHash(text: string): PasswordHash | undefined {
  const match = FORM.exec(text);
  if (match === null) return undefined;
  const [N, r, p] = [Number(match[1]), Number(match[2]), Number(match[3])];
  const salt = Buffer.from(match[4] ?? "", "base64");
  const hash = Buffer.from(match[5] ?? "", "base64");
  const isPowerOfTwo = N > 1 && (N & (N - 1)) === 0;
  const isAffordable = p <= 16 && memory({ N, r, p }) <= MAX_MEMORY_BYTES;
  if (!isPowerOfTwo || r === 0 || p === 0 || !isAffordable) return undefined;
  if (salt.length < 8 || hash.length < 16 || hash.length > 64) return undefined;
  return { N, r, p, salt, hash };
}

/**
 * Returns a hash that matches no password and takes as long to check as a hash with the cost
 * `like`.
 */
export function decoyHash(like: Cost = COST): PasswordHash {
  const { N, r, p } = like;
  const salt = randomBytes(SALT_BYTES);
  return { N, r, p, salt, hash: randomBytes(HASH_BYTES) };
}

interface Waiting {
  readonly rank: number;
  readonly go: () => void;
  readonly refuse: (error: BrokerError) => void;
}

/**
 * Queue of checks with limited concurrency. The lowest rank runs first. Calls of equal rank run in
 * the order of the calls.
 */
export class PasswordChecker {
  readonly #maxRunning: number;
  readonly #maxWaiting: number;
  readonly #waiting: Waiting[] = [];
  #running = 0;

  constructor(bounds: {
    readonly maxRunning: number;
    readonly maxWaiting: number;
  }) {
    this.#maxRunning = bounds.maxRunning;
    this.#maxWaiting = bounds.maxWaiting;
  }

  async matches(password: string, expected: PasswordHash, rank = 0): Promise<boolean> {
    if (this.#running < this.#maxRunning) this.#running++;
    else await this.#turn(rank);
    try {
      const hash = await derive(password, expected, expected.hash.length);
      return timingSafeEqual(hash, expected.hash);
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#running--;
      else next.go(); // #running stays the same, because the next check uses the slot
    }
  }

  #turn(rank: number): Promise<void> {
    if (this.#waiting.length >= this.#maxWaiting) {
      const last = this.#waiting.at(-1);
      if (last === undefined || last.rank <= rank) throw new BrokerError("overloaded");
      this.#waiting.pop();
      last.refuse(new BrokerError("overloaded"));
    }
    const higher = this.#waiting.findIndex((check) => check.rank > rank);
    const at = higher < 0 ? this.#waiting.length : higher;
    return new Promise((go, refuse) => this.#waiting.splice(at, 0, { rank, go, refuse }));
  }
}

function derive(
  password: string,
  { N, r, p, salt }: Cost & { readonly salt: Uint8Array },
  bytes: number,
): Promise<Buffer> {
  const options = { N, r, p, maxmem: 2 * memory({ N, r, p }) };
  return new Promise((resolve, reject) => {
    scrypt(password, salt, bytes, options, (error, key) => {
      if (error === null) resolve(key);
      else reject(error);
    });
  });
}

function memory({ N, r, p }: Cost): number {
  return 128 * r * (N + p);
}
