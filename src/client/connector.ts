// Keeps a client connected: opens one connection after another until the client is closed or the
// server forbids reconnecting. Does not handle messages.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { deferred } from "../lib/deferred.ts";
import { encodeUtf8 } from "../lib/utf8.ts";
import { encodeOperation } from "../protocol/native/client-encode.ts";
import { NATIVE_VERSION } from "../protocol/native/ops.ts";
import type { ResumePoint } from "../protocol/protocol.ts";
import type { ClientEvents, Status } from "./api.ts";
import {
  type Connack,
  Connection,
  type ConnectionEnd,
  type ConnectionPorts,
} from "./connection.ts";
import { asJindouError, JindouError, kickedEventOf } from "./errors.ts";
import { randomId, type Settings } from "./options.ts";
import { drop, openSocket } from "./socket.ts";
import { now } from "./waiting.ts";

interface ConnectorPorts {
  readonly settings: Settings;
  /** Returns at most `limit` channels to resume, most recently used first. */
  resume(limit: number): readonly ResumePoint[];
  opened(connection: Connection, connack: Connack): void;
  readonly pushed: ConnectionPorts["pushed"];
  lost(end: ConnectionEnd): void;
  closed(error: JindouError): void;
  emit<E extends "status" | "kicked" | "error">(event: E, value: ClientEvents[E]): void;
}

/**
 * Duration after which a session is treated as stable. The reconnect delay is reset when a stable
 * session is lost.
 */
const STABLE_MS = 2000;
/** Close codes that may mean that a frame was too large for the server. */
const MAYBE_TOO_LARGE: readonly number[] = [1006, 1009];
/** Maximum number of channels that a server accepts in CONNECT by default. */
const MAX_RESUME_CHANNELS = 1000;
/** Frame size limit that is assumed until CONNACK reports the server's limit. */
const MAX_FRAME_BYTES = 128 * 1024;
const RESUME_SHARE = 0.75;
/** Maximum size of an encoded resume point without its channel id. */
const RESUME_POINT_BYTES = 25;
/** Maximum time to wait for a pong when the platform is online again after being offline. */
const SUSPECT_MS = 1000;
/**
 * Close codes after which the client connects once more if the app passed a token function, because
 * the function may return a new token.
 */
const TOKEN_REFUSALS: readonly number[] = [
  CLOSE_REASONS.auth_failed.code,
  CLOSE_REASONS.token_changed.code,
];

// Ranges of close codes. 4000–4099: the first reconnect since the last stable session is immediate,
// and further reconnects are delayed. 4200–4299: no reconnect, except after `TOKEN_REFUSALS`. Other
// codes: delayed reconnect. `#ended` handles the exceptions.
const AT_ONCE_FROM = 4000;
const PAUSE_FROM = 4100;
const NEVER_FROM = 4200;
const NEVER_TO = 4299;

/**
 * Sessions that this process is closing, by address, user and device flag. A new client first waits
 * until a session with the same three values is closed. Without the wait, the server could log in
 * the old client after the new client.
 */
const closing = new Map<string, Promise<unknown>>();

interface Attempt {
  readonly connectFrame: Uint8Array;
  readonly resumed: number;
  readonly token: string;
}

export class Connector {
  readonly #ports: ConnectorPorts;
  #status: Status = "connecting";
  #connection: Connection | undefined;
  /** Number of calls to `#reconnect` since the last stable session. */
  #failures = 0;
  /** Number of sockets that were closed before they opened, since the last open session. */
  #refusals = 0;
  #openedAt = 0;
  #resumeLimit = MAX_RESUME_CHANNELS;
  #maxFrameBytes = MAX_FRAME_BYTES;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** True while an attempt has no connection yet, for example while its token is requested. */
  #isStarting = false;
  #closed: Promise<void> | undefined;
  /**
   * Name of the session to continue. It is random until CONNACK contains the name that the server
   * chose, so that a repeated attempt is not a second login.
   */
  #sessionName = randomId();
  /** Token of the session, or of the first CONNECT that may have opened it. */
  #sessionToken: string | undefined;
  /**
   * The first token that the server refused since the last open session, and how the attempt with
   * it ended. Only set if the app passed a token function.
   */
  #refused: { readonly token: string; readonly end: ConnectionEnd } | undefined;

  constructor(ports: ConnectorPorts) {
    this.#ports = ports;
  }

  get status(): Status {
    return this.#status;
  }

  /**
   * Ends a reconnect delay, or pings the connection. If `wasOffline` is true, the connection is
   * probably dead, so it must answer the ping within one second.
   */
  connectNow(wasOffline = false): void {
    this.#connection?.probe(wasOffline ? SUSPECT_MS : undefined);
    if (this.#status === "closed" || this.#connection !== undefined || this.#isStarting) return;
    clearTimeout(this.#timer);
    this.#setStatus("connecting");
    void this.#connect();
  }

  /** Closes the client permanently. Resolves when the socket is closed, or after three seconds. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    const connection = this.#connection;
    const key = this.#closingKey();
    const done = deferred();
    const all = Promise.all([closing.get(key), done.promise]);
    closing.set(key, all);
    this.#finish(new JindouError("closed"));
    await connection?.disconnect();
    done.resolve();
    if (closing.get(key) === all) closing.delete(key);
  }

  #closingKey(): string {
    const { url, uid, deviceFlag } = this.#ports.settings;
    return [url, uid, deviceFlag].join("\n");
  }

  async #connect(): Promise<void> {
    const { settings } = this.#ports;
    this.#isStarting = true;
    try {
      await closing.get(this.#closingKey());
      const token = await settings.token();
      if (this.#isClosed()) return;
      if (this.#refused?.token === token) return this.#kicked(this.#refused.end);
      const attempt = this.#attemptWith(token);
      const socket = await openSocket(settings.url, settings.webSocket);
      if (this.#isClosed()) return drop(socket);
      const connection: Connection = new Connection({
        socket,
        uid: settings.uid,
        connectFrame: attempt.connectFrame,
        timeouts: settings.timeouts,
        opened: (connack) => this.#opened(connection, connack),
        pushed: this.#ports.pushed,
        ended: (end) => this.#ended(end, attempt),
      });
      this.#connection = connection;
      this.#isStarting = false;
    } catch (error) {
      this.#isStarting = false;
      if (!this.#isClosed()) this.#attemptFailed(asJindouError(error, "bad_option"));
    }
  }

  #isClosed(): boolean {
    return this.#status === "closed";
  }

  #attemptWith(token: string): Attempt {
    const { settings, resume } = this.#ports;
    const resumePoints = pointsWithin(
      resume(this.#resumeLimit),
      this.#maxFrameBytes * RESUME_SHARE,
    );
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
      sessionName: this.#sessionName,
    });
    return { connectFrame, resumed: resumePoints.length, token };
  }

  #attemptFailed(error: JindouError): void {
    if (error.retry) this.#reconnect("pause");
    else this.#finish(error);
    this.#ports.emit("error", error);
  }

  #opened(connection: Connection, connack: Connack): void {
    this.#openedAt = now();
    this.#refusals = 0;
    this.#refused = undefined;
    this.#sessionName = connack.sessionId;
    this.#maxFrameBytes = connack.limits.maxFrameBytes;
    this.#setStatus("online");
    // a status handler may have closed the client
    if (this.#connection === connection) this.#ports.opened(connection, connack);
  }

  #ended(end: ConnectionEnd, { resumed, connectFrame, token }: Attempt): void {
    const wasOpen = this.#status === "online";
    this.#connection = undefined;
    if (this.#status === "closed") return;
    if (wasOpen) {
      this.#ports.lost(end);
      const durationMs = now() - this.#openedAt;
      if (durationMs >= STABLE_MS) this.#failures = 0;
    } else if (resumed > 0) {
      if (end.error?.code === "too_large") {
        this.#resumeLimit = resumed >> 1; // this server accepts fewer channels
        return this.#connectAfter(0);
      }
      if (end.isConnectSent && MAYBE_TOO_LARGE.includes(end.code))
        this.#maxFrameBytes = connectFrame.length / 2; // assumed until CONNACK sets the limit
    }
    if (wasOpen || (end.isConnectSent && this.#sessionToken === undefined))
      this.#sessionToken = token;
    if ((!wasOpen && this.#adoptNewToken(end.code, token)) || this.#asksAgain(end, token)) {
      this.#sessionName = randomId(); // with an unused session id, the next CONNECT is a login
      return this.#connectAfter(0);
    }
    // without a token function, there is no way to get a new token
    if (end.code === CLOSE_REASONS.token_expired.code && !this.#ports.settings.hasTokenFunction)
      return this.#kicked({ ...end, code: CLOSE_REASONS.auth_failed.code });
    const timing = reconnectTiming(end.code);
    // a draining node is not a failure, because the next attempt reaches another node
    const isGoingAway = end.code === CLOSE_REASONS.draining.code;
    const isFailed = !wasOpen && !isGoingAway && timing !== "never";
    if (timing === "never") return this.#kicked(end);
    const error = end.error ?? (isFailed ? this.#connectFailure(end) : undefined);
    if (error !== undefined) this.#ports.emit("error", error);
    if (!end.isConnectSent) this.#retryRefused();
    else this.#reconnect(timing);
  }

  /**
   * Returns true if the server ended the session because its token was replaced, and the last
   * CONNECT already had a different token. Returns true at most once per session.
   */
  #adoptNewToken(code: number, token: string): boolean {
    if (code !== CLOSE_REASONS.token_changed.code) return false;
    const sessionToken = this.#sessionToken;
    this.#sessionToken = undefined;
    return sessionToken !== undefined && sessionToken !== token;
  }

  /** Returns true if the token function must be called once more before the client gives up. */
  #asksAgain(end: ConnectionEnd, token: string): boolean {
    const { hasTokenFunction } = this.#ports.settings;
    if (!TOKEN_REFUSALS.includes(end.code) || !hasTokenFunction || this.#refused !== undefined)
      return false;
    this.#refused = { token, end };
    return true;
  }

  /**
   * Closes the client permanently. The error's code is the reason in the `kicked` event. If CONNECT
   * was refused, the error has the server's message.
   */
  #kicked({ code, error: refusal }: ConnectionEnd): void {
    const kicked = kickedEventOf(code);
    const { message } = refusal ?? kicked;
    const error = new JindouError(kicked.reason, { message, cause: refusal });
    if (refusal !== undefined) this.#ports.emit("error", error);
    this.#finish(error);
    this.#ports.emit("kicked", { ...kicked, message });
  }

  #connectFailure({ code, isConnectSent, isBlocked, cause }: ConnectionEnd): JindouError {
    const { url } = this.#ports.settings;
    const policy = isBlocked && "document" in globalThis;
    const message = isConnectSent
      ? `Closed with code ${code} before a session opened`
      : `No WebSocket opened at ${url}${cause && ` (${cause})`}. Use the URL of the client listener, not of the API${
          policy ? ". The Content-Security-Policy (connect-src) must allow it" : ""
        }`;
    return new JindouError("connection_lost", { message });
  }

  #reconnect(when: "at_once" | "pause"): void {
    if (this.#status === "closed") return; // a handler closed the client
    const atOnce = when === "at_once" && this.#failures === 0;
    const delayMs = reconnectDelayMs(this.#failures, this.#ports.settings.reconnect);
    this.#failures += 1;
    this.#connectAfter(atOnce ? 0 : delayMs);
  }

  /**
   * Connects after a delay. The first delays are short, because a server that restarts refuses
   * connections for only a second or two.
   */
  #retryRefused(): void {
    if (this.#status === "closed") return; // a handler closed the client
    const delayMs = refusedDelayMs(this.#refusals, this.#ports.settings.reconnect);
    this.#refusals += 1;
    this.#connectAfter(delayMs);
  }

  #connectAfter(ms: number): void {
    this.#timer = setTimeout(() => this.connectNow(), ms);
    this.#setStatus("offline");
  }

  #finish(error: JindouError): void {
    if (this.#status === "closed") return;
    clearTimeout(this.#timer);
    this.#connection = undefined;
    this.#ports.closed(error);
    this.#setStatus("closed");
  }

  #setStatus(status: Status): void {
    if (this.#status === status) return;
    this.#status = status;
    this.#ports.emit("status", status);
  }
}

function pointsWithin(points: readonly ResumePoint[], maxBytes: number): readonly ResumePoint[] {
  let bytes = 0;
  return points.filter(({ channel }) => {
    bytes += RESUME_POINT_BYTES + encodeUtf8(channel.id).length;
    return bytes <= maxBytes;
  });
}

export function reconnectTiming(code: number): "at_once" | "pause" | "never" {
  if (code >= NEVER_FROM && code <= NEVER_TO) return "never";
  return code >= AT_ONCE_FROM && code < PAUSE_FROM ? "at_once" : "pause";
}

/**
 * Returns a reconnect delay. Half of the delay is random (all of it if `attempt` is 0), so that
 * clients do not reconnect at the same time.
 */
export function reconnectDelayMs(
  attempt: number,
  { minMs, maxMs }: { readonly minMs: number; readonly maxMs: number },
  random: () => number = Math.random,
): number {
  const full = Math.min(maxMs, minMs * 2 ** Math.min(attempt, 30));
  return attempt === 0 ? random() * full : full * (0.5 + random() / 2);
}

/**
 * Returns the delay after an attempt in which no socket opened. With the default options, the delay
 * is 50 to 150 ms at first, and doubles twice. After about four seconds in total, it doubles again
 * with each attempt, up to `maxMs`.
 */
export function refusedDelayMs(
  attempt: number,
  { minMs, maxMs }: { readonly minMs: number; readonly maxMs: number },
  random: () => number = Math.random,
): number {
  const doublings = Math.min(attempt, Math.max(2, attempt - 9));
  return Math.min((minMs / 5) * 2 ** doublings, maxMs / 1.5) * (0.5 + random());
}
