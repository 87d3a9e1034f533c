// Replaces the open session's JWT before it expires, by calling the app's token function.

import type { Connack, Connection } from "./connection.ts";
import { asJindouError, isConnectionLost, type JindouError } from "./errors.ts";
import type { Settings } from "./options.ts";
import { Timer } from "./waiting.ts";

interface TokenRefreshPorts {
  readonly settings: Pick<Settings, "token" | "hasTokenFunction">;
  onError(error: JindouError): void;
}

/** Minimum fraction of the token's remaining lifetime after which the token is replaced. */
const EARLIEST = 0.8;
/**
 * Maximum random addition to `EARLIEST`, so that clients whose tokens expire at the same time
 * refresh them at different times.
 */
const SPREAD = 0.1;
const MIN_WAIT_MS = 1000;
const MAX_WAIT_MS = 86_400_000;
const MAX_RETRY_MS = 30_000;

export class TokenRefresh {
  readonly #ports: TokenRefreshPorts;
  readonly #timer = new Timer(() => void this.#refresh());
  #connection: Connection | undefined;
  #retryMs = MIN_WAIT_MS;

  constructor(ports: TokenRefreshPorts) {
    this.#ports = ports;
  }

  opened(connection: Connection, connack: Connack): void {
    this.#connection = connection;
    this.#schedule(connack);
  }

  /**
   * Refreshes the token immediately, because the server has announced that the token expires soon.
   */
  expiring(): void {
    if (this.#timer.isRunning) this.#timer.start(0); // otherwise a refresh is running or not needed
  }

  lost(): void {
    this.#connection = undefined;
    this.#timer.stop();
  }

  #schedule({ expiresInS }: Connack): void {
    this.#retryMs = MIN_WAIT_MS;
    if (expiresInS === undefined || !this.#ports.settings.hasTokenFunction) return;
    const waitMs = expiresInS * 1000 * (EARLIEST + SPREAD * Math.random());
    this.#timer.start(Math.min(Math.max(waitMs, MIN_WAIT_MS), MAX_WAIT_MS));
  }

  async #refresh(): Promise<void> {
    const connection = this.#connection;
    const isCurrent = () => connection === this.#connection;
    try {
      const token = await this.#ports.settings.token();
      if (connection === undefined || !isCurrent()) return;
      const connack = await connection.request({ kind: "refresh", token });
      if (isCurrent()) this.#schedule(connack);
    } catch (error) {
      if (!isCurrent() || isConnectionLost(error)) return;
      this.#timer.start(this.#retryMs * (1 + Math.random()));
      this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
      this.#ports.onError(asJindouError(error, "token_failed"));
    }
  }
}
