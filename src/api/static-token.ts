// The static API token. Limits guesses per client network: if a network has sent `attempts` wrong
// tokens within `windowS`, the tokens from this network are checked slowly until it sends the right
// token or the window ends. Each node counts wrong tokens separately.

import { hasAccessTokenForm } from "../broker/access-tokens.ts";
import { SlowTurns } from "../broker/slow-turns.ts";
import { hashesEqual, hashToken } from "../broker/tokens.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { networkOf } from "../lib/network.ts";
import type { HttpRequest } from "../transport/types.ts";

const MAX_NETWORKS = 100_000;

interface Failures {
  count: number;
  readonly endsAtMs: number;
}

export interface GuessLimits {
  /** Number of wrong tokens within `windowS` after which a network is slowed down. */
  readonly attempts: number;
  readonly windowS: number;
}

export class StaticToken {
  readonly #hash: Uint8Array | undefined;
  readonly #hasAccessTokenForm: boolean;
  readonly #limits: GuessLimits;
  readonly #failures = new BoundedMap<string, Failures>(MAX_NETWORKS);
  /**
   * Networks that have sent the correct token. Recorded only while there are recent failures,
   * because otherwise no network is slowed down.
   */
  readonly #verified = new BoundedMap<string, true>(MAX_NETWORKS);
  readonly #turns = new SlowTurns();
  #failuresEndAtMs = 0;

  /** An empty `token` means that no static token is accepted. */
  constructor(token: string, limits: GuessLimits) {
    this.#hash = token === "" ? undefined : hashToken(token);
    this.#hasAccessTokenForm = hasAccessTokenForm(token);
    this.#limits = limits;
  }

  get exists(): boolean {
    return this.#hash !== undefined;
  }

  isRight(token: string): boolean {
    // The hashes have equal lengths, as the constant-time comparison requires.
    return this.#hash !== undefined && hashesEqual(hashToken(token), this.#hash);
  }

  /**
   * Returns true if a wrong Bearer token counts as a guess. A text in the form of an access token,
   * such as a manager's former token, counts only if the static token has this form too, because
   * otherwise it cannot equal the static token.
   */
  isGuess(bearer: string): boolean {
    return this.#hasAccessTokenForm || !hasAccessTokenForm(bearer);
  }

  /**
   * Records an attempt. A wrong token is counted before the caller learns that it is wrong. Returns
   * a promise if the caller must wait. The promise rejects with `rate_limited` if the network's
   * queue in `SlowTurns` is full.
   */
  attempt(request: HttpRequest, isRight: boolean): Promise<void> | undefined {
    if (this.#hash === undefined) return undefined;
    const nowMs = performance.now();
    // Saves the cost of reading the address while there are no guesses.
    if (isRight && nowMs >= this.#failuresEndAtMs) return undefined;
    const network = networkOf(request.remoteAddress);
    const isSlowedDown = this.#isSlowedDown(network, nowMs);
    if (!isRight) this.#countFailure(network, nowMs);
    if (isSlowedDown) return this.#inTurn(network, isRight);
    if (isRight) this.#verified.set(network, true);
    return undefined;
  }

  async #inTurn(network: string, isRight: boolean): Promise<void> {
    await this.#turns.wait(network);
    // The network is verified only after the wait. Otherwise, an attacker could send each token
    // twice and see which token need not wait.
    if (isRight) this.#verified.set(network, true);
  }

  #isSlowedDown(network: string, nowMs: number): boolean {
    const failures = this.#failures.get(network);
    if (failures === undefined || this.#verified.get(network) === true) return false;
    if (nowMs < failures.endsAtMs) return failures.count >= this.#limits.attempts;
    this.#failures.delete(network);
    this.#turns.forget(network);
    return false;
  }

  #countFailure(network: string, nowMs: number): void {
    const failures = this.#failures.get(network);
    if (failures !== undefined && nowMs < failures.endsAtMs) {
      failures.count += 1;
      return;
    }
    const endsAtMs = nowMs + this.#limits.windowS * 1000;
    this.#failures.set(network, { count: 1, endsAtMs });
    this.#failuresEndAtMs = endsAtMs;
  }
}
