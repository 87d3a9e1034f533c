// Keeps a client connected: opens one connection after the other until it is closed or the server
// forbids a reconnect. Knows nothing of messages.
// State: the status, the connection, the session to continue, the number of failed attempts.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import { NATIVE_VERSION } from "../protocol/native/ops.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { ClientEvents, Status } from "./api.ts";
import {
  type Connack,
  Connection,
  type ConnectionEnd,
  type ConnectionParts,
} from "./connection.ts";
import { asJindouError, endedBy, JindouError } from "./errors.ts";
import { randomName, type Settings } from "./options.ts";
import { drop, openSocket } from "./socket.ts";

interface ConnectorParts {
  readonly settings: Settings;
  /** The channels to resume, `limit` at most, most recently used first. */
  resume(limit: number): readonly ResumePoint[];
  /** A session is open. */
  opened(connection: Connection, connack: Connack): void;
  readonly pushed: ConnectionParts["pushed"];
  /** The open session's connection is lost. */
  lost(): void;
  /** The client is closed permanently; everything that waits is rejected with `error`. */
  closed(error: JindouError): void;
  emit<E extends "status" | "kicked" | "error">(event: E, value: ClientEvents[E]): void;
}

/** A session that lasted this long resets the reconnect delay. */
const STABLE_MS = 2000;
/** Close codes with which a server ends a connection whose frame is too large for it. */
const MAYBE_TOO_LARGE: readonly number[] = [1006, 1009];
/** A server's limits unless configured otherwise. */
const MAX_RESUME_CHANNELS = 1000;
const MAX_FRAME_BYTES = 128 * 1024;
/** Share of the largest frame for resume points; the rest is for the token and the names. */
const RESUME_SHARE = 0.75;
/** Most bytes of a resume point beside its channel's id. */
const RESUME_POINT_BYTES = 25;

// Close codes 4000 to 4099: reconnect at once; 4200 to 4299: never; all others: after a delay.
const AT_ONCE_FROM = 4000;
const PAUSE_FROM = 4100;
const NEVER_FROM = 4200;
const NEVER_TO = 4299;

/** A connection attempt. */
interface Attempt {
  readonly connectFrame: Uint8Array;
  /** Number of channels the CONNECT names. */
  readonly resumed: number;
  readonly token: string;
}

export class Connector {
  readonly #parts: ConnectorParts;
  #status: Status = "connecting";
  #connection: Connection | undefined;
  #failures = 0;
  /** Monotonic clock. */
  #openedAt = 0;
  /** The server's limits, as far as known. */
  #resumeLimit = MAX_RESUME_CHANNELS;
  #maxFrameBytes = MAX_FRAME_BYTES;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #round = 0;
  /**
   * The session to continue. Until the server has named it, a name of our own, so that repeating
   * an attempt whose CONNACK was lost is not a second login.
   */
  #session = randomName();
  /** The token of the session, or of the first CONNECT that may have opened it. */
  #sessionToken: string | undefined;

  constructor(parts: ConnectorParts) {
    this.#parts = parts;
  }

  get status(): Status {
    return this.#status;
  }

  /** Connects without waiting for the rest of a reconnect delay; pings when connected. */
  connectNow(): void {
    if (this.#status === "closed") return;
    if (this.#connection !== undefined) return this.#connection.probe();
    clearTimeout(this.#timer);
    this.#become("connecting");
    this.#round += 1;
    void this.#connect(this.#round);
  }

  /** Closes the client; resolves when the server knows or cannot be reached. */
  async close(): Promise<void> {
    const connection = this.#connection;
    this.#finish(new JindouError("closed"));
    await connection?.disconnect();
  }

  /** `round` distinguishes this attempt from an abandoned one. */
  async #connect(round: number): Promise<void> {
    const { settings } = this.#parts;
    const isOld = () => round !== this.#round || this.#status === "closed";
    try {
      const token = await settings.token();
      if (isOld()) return;
      const attempt = this.#attemptWith(token);
      const socket = await openSocket(settings.url, settings.webSocket);
      if (isOld()) return drop(socket);
      const connection: Connection = new Connection({
        socket,
        uid: settings.uid,
        connectFrame: attempt.connectFrame,
        timeouts: settings.timeouts,
        opened: (connack) => this.#opened(connection, connack),
        pushed: this.#parts.pushed,
        ended: (end) => this.#ended(end, attempt),
      });
      this.#connection = connection;
    } catch (error) {
      if (!isOld()) this.#failed(asJindouError(error, "bad_option"));
    }
  }

  #attemptWith(token: string): Attempt {
    const { settings, resume } = this.#parts;
    const resumePoints = fitting(resume(this.#resumeLimit), this.#maxFrameBytes * RESUME_SHARE);
    const connectFrame = encodeOperation({
      kind: "connect",
      ref: 1,
      version: NATIVE_VERSION,
      uid: settings.uid,
      token,
      flag: settings.deviceFlag,
      deviceId: settings.deviceId,
      level: undefined,
      resume: resumePoints,
      session: this.#session,
    });
    return { connectFrame, resumed: resumePoints.length, token };
  }

  /** There is no token or no socket. */
  #failed(error: JindouError): void {
    if (error.retry) this.#again("pause");
    else this.#finish(error);
    this.#parts.emit("error", error);
  }

  #opened(connection: Connection, connack: Connack): void {
    this.#openedAt = performance.now();
    this.#session = connack.sessionId;
    this.#maxFrameBytes = connack.limits.maxFrameBytes;
    this.#become("online");
    // a status handler may have closed it
    if (this.#connection === connection) this.#parts.opened(connection, connack);
  }

  #ended(end: ConnectionEnd, { resumed, connectFrame, token }: Attempt): void {
    const wasOpen = this.#status === "online";
    this.#connection = undefined;
    if (this.#status === "closed") return;
    if (wasOpen) {
      this.#parts.lost();
      const heldMs = performance.now() - this.#openedAt;
      if (heldMs >= STABLE_MS) this.#failures = 0;
    } else if (resumed > 0) {
      if (end.error?.code === "too_large") {
        this.#resumeLimit = resumed >> 1; // this server resumes fewer channels
        return this.#waitFor(0);
      }
      if (end.isConnectSent && MAYBE_TOO_LARGE.includes(end.code))
        this.#maxFrameBytes = connectFrame.length / 2; // until CONNACK names the limit
    }
    if (wasOpen || (end.isConnectSent && this.#sessionToken === undefined))
      this.#sessionToken = token;
    if (!wasOpen && this.#hasNewToken(end.code, token)) {
      this.#session = randomName(); // a login
      return this.#waitFor(0);
    }
    const next = verdict(end.code);
    const isGoingAway = end.code === CLOSE_REASONS.draining.code; // another node takes over
    const isFailed = !wasOpen && !isGoingAway && next !== "never";
    const error = end.error ?? (isFailed ? noSession(end) : undefined);
    if (error !== undefined) this.#parts.emit("error", error);
    if (next === "never") this.#kicked(end);
    else this.#again(next);
  }

  /**
   * Whether the session ended because its token was revoked and the app has supplied another one
   * since. At most once per session.
   */
  #hasNewToken(code: number, token: string): boolean {
    if (code !== CLOSE_REASONS.token_changed.code) return false;
    const before = this.#sessionToken;
    this.#sessionToken = undefined;
    return before !== undefined && before !== token;
  }

  #kicked(end: ConnectionEnd): void {
    const kicked = endedBy(end.code);
    this.#finish(end.error ?? new JindouError(kicked.reason, kicked));
    this.#parts.emit("kicked", kicked);
  }

  #again(when: "at_once" | "pause"): void {
    if (this.#status === "closed") return; // a handler closed it
    const atOnce = when === "at_once" && this.#failures === 0;
    const wait = pauseMs(this.#failures, this.#parts.settings.reconnect);
    this.#failures += 1;
    this.#waitFor(atOnce ? 0 : wait);
  }

  #waitFor(ms: number): void {
    this.#timer = setTimeout(() => this.connectNow(), ms);
    this.#become("offline");
  }

  #finish(error: JindouError): void {
    if (this.#status === "closed") return;
    clearTimeout(this.#timer);
    this.#connection = undefined;
    this.#parts.closed(error);
    this.#become("closed");
  }

  #become(status: Status): void {
    if (this.#status === status) return;
    this.#status = status;
    this.#parts.emit("status", status);
  }
}

/** The resume points that `maxBytes` hold. */
function fitting(points: readonly ResumePoint[], maxBytes: number): readonly ResumePoint[] {
  const encoder = new TextEncoder();
  let bytes = 0;
  return points.filter(({ channel }) => {
    bytes += RESUME_POINT_BYTES + encoder.encode(channel.id).length;
    return bytes <= maxBytes;
  });
}

/** A failed attempt for which neither side gave a reason. */
function noSession({ code }: ConnectionEnd): JindouError {
  const message = `No session: the connection ended with code ${code}`;
  return new JindouError("connection_lost", { message });
}

/** What to do after a connection closed with `code`. */
export function verdict(code: number): "at_once" | "pause" | "never" {
  if (code >= NEVER_FROM && code <= NEVER_TO) return "never";
  return code >= AT_ONCE_FROM && code < PAUSE_FROM ? "at_once" : "pause";
}

/**
 * Milliseconds before attempt number `attempt` (0: the first after a stable connection). Half of it
 * is jitter, so that clients disconnected together do not reconnect together.
 */
export function pauseMs(
  attempt: number,
  { minMs, maxMs }: { readonly minMs: number; readonly maxMs: number },
  random: () => number = Math.random,
): number {
  const full = Math.min(maxMs, minMs * 2 ** Math.min(attempt, 30));
  return attempt === 0 ? random() * full : full * (0.5 + random() / 2);
}
