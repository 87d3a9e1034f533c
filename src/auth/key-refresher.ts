// Keeps an issuer's keys up to date: reads a file or a URL in the background, and replaces the set
// of keys when the content has changed. Logins never wait for a read. State: the current set, the
// key ids (kids) that were not found in it, and the timer of the next read.

import { BrokerError } from "../broker/errors.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { TokenRefusal } from "./claims.ts";
import type { KeySet } from "./key-set.ts";

/** Content of a file or URL with keys. */
interface KeyDocument {
  readonly text: string;
  /** Time at which the source was read, in Unix milliseconds. */
  readonly readAtMs: number;
}

interface RefresherPorts {
  /** Reads the source. Returns `undefined` if its content has not changed since the last call. */
  read(): Promise<string | undefined>;
  /** Creates a set of keys from a document's text. Throws if the text is malformed. */
  parse(text: string): KeySet;
  readonly refreshS: number;
  readonly maxStaleS: number;
  /** Returns the current time in Unix milliseconds, for the copy's `readAtMs`. */
  readonly clock: () => number;
  /** Copy of the last content. A node uses the copy from startup until it has read the source. */
  readonly copy: {
    load(): Promise<KeyDocument | undefined>;
    save(document: KeyDocument): Promise<void>;
  };
  onChanged(): void;
  onFailure(error: unknown): void;
}

/** Minimum time between two reads that are triggered by unknown kids. */
const EARLY_MS = 30_000;
const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 60_000;
/** Maximum fraction by which a wait varies at random, so that nodes read at different times. */
const JITTER = 0.1;
/** Maximum number of missing kids that are recorded. */
const MAX_MISSING = 10_000;
const MAX_KID_LENGTH = 256;

export class KeyRefresher {
  readonly #ports: RefresherPorts;
  #set: KeySet | undefined;
  /** Text that the current set was parsed from. */
  #text = "";
  /** Text of the last read. Differs from `#text` if it contains no usable keys. */
  #readText = "";
  /**
   * Time at which the last successful read began (`performance.now()`). The system clock is not
   * used, because setting it must not change the keys' age. `undefined` before the first read.
   */
  #readAtMs: number | undefined;
  /** Time at which each kid was first missing (`performance.now()`). */
  #missing = new BoundedMap<string, number>(MAX_MISSING);
  #failures = 0;
  #lastEarlyMs = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | undefined;
  /** Timer of the next regular read, `undefined` from its firing until the read has ended. */
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(ports: RefresherPorts) {
    this.#ports = ports;
  }

  /** Seconds since the last successful read, or 0 before the first one. */
  get ageS(): number {
    return this.#readAtMs === undefined ? 0 : (performance.now() - this.#readAtMs) / 1000;
  }

  /**
   * Begins to read the source. Resolves without waiting for this read if the copy has usable keys
   * that are not older than `maxStaleS`. Otherwise, resolves after the read, even if it fails and
   * the node starts without usable keys.
   */
  async start(): Promise<void> {
    try {
      const copy = await this.#ports.copy.load();
      if (copy !== undefined) {
        const ageMs = Math.max(0, this.#ports.clock() - copy.readAtMs);
        this.#adopt(copy.text, performance.now() - ageMs);
      }
    } catch (error) {
      this.#ports.onFailure(error);
    }
    if (this.#isClosed) return;
    const reading = this.#read();
    if (this.#set === undefined || this.#isStale) await reading;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  /**
   * Returns the keys. Throws `unavailable` if no keys have been read yet, or if the keys are older
   * than `maxStaleS`.
   */
  current(): KeySet {
    if (this.#set === undefined || this.#isStale)
      throw new BrokerError("unavailable", {
        message: "The token issuer's keys are not available. Try again later",
      });
    return this.#set;
  }

  /**
   * Returns the error for a token whose key is not in the set. If the source was read after the kid
   * was first missing, the token is refused. Otherwise the client may try again, and the source is
   * read unless an unknown kid has already triggered a read within the last `EARLY_MS`.
   */
  missing(kid: string): TokenRefusal | BrokerError {
    const refusal = new TokenRefusal("key", "none of the issuer's keys has the token's kid");
    if (kid.length > MAX_KID_LENGTH) return refusal;
    const missingSinceMs = this.#missing.get(kid);
    if (missingSinceMs === undefined) this.#missing.set(kid, performance.now());
    else if ((this.#readAtMs ?? Number.NEGATIVE_INFINITY) >= missingSinceMs) return refusal;
    this.#readEarly();
    return new BrokerError("unavailable", {
      message: "The token's key is not known yet. Try again later",
    });
  }

  /** True if the keys are older than `maxStaleS` and must therefore not be used. */
  get #isStale(): boolean {
    return this.ageS > this.#ports.maxStaleS;
  }

  #readEarly(): void {
    const nowMs = performance.now();
    if (this.#reading !== undefined || nowMs - this.#lastEarlyMs < EARLY_MS) return;
    this.#lastEarlyMs = nowMs;
    void this.#read();
  }

  /** Reads the source, unless a read is in progress. */
  #read(): Promise<void> {
    this.#reading ??= this.#readNow().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  async #readNow(): Promise<void> {
    const startMs = performance.now();
    const readAtMs = this.#ports.clock();
    let isRead = false;
    try {
      this.#readText = (await this.#ports.read()) ?? this.#readText;
      isRead = this.#adopt(this.#readText, startMs);
      if (isRead) await this.#ports.copy.save({ text: this.#readText, readAtMs });
    } catch (error) {
      this.#ports.onFailure(error);
    }
    this.#failures = isRead ? 0 : this.#failures + 1;
    // An early read that fails does not change the time of the next regular read.
    if (isRead || this.#timer === undefined) this.#schedule();
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    const retryMs = Math.min(FIRST_RETRY_MS * 2 ** (this.#failures - 1), MAX_RETRY_MS);
    const waitMs = this.#failures > 0 ? retryMs : this.#ports.refreshS * 1000;
    const jitter = 1 + JITTER * (2 * Math.random() - 1);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#read();
    }, waitMs * jitter).unref();
  }

  /**
   * Replaces the set if the content has changed, and records the time of the read. If the content
   * is malformed, reports the error and returns false.
   */
  #adopt(text: string, readAtMs: number): boolean {
    try {
      if (text !== this.#text || this.#set === undefined) {
        const set = this.#ports.parse(text);
        const isFirst = this.#set === undefined;
        this.#set = set;
        this.#text = text;
        if (!isFirst) this.#ports.onChanged();
      }
      this.#readAtMs = readAtMs;
      return true;
    } catch (error) {
      this.#ports.onFailure(error);
      return false;
    }
  }
}
