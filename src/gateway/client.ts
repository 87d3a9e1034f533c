// One client connection from its first byte to its last: selects the protocol, decodes frames,
// limits their rate, opens the session on CONNECT (`opening.ts`) and runs operations. Every
// exception other than a FrameError or a BrokerError is a bug.

import {
  BrokerError,
  CLOSE_REASONS,
  type CloseReason,
  type ErrorCode,
  isTransient,
} from "../broker/errors.ts";
import type { Deadlines } from "../lib/deadlines.ts";
import { networkOf } from "../lib/network.ts";
import type { PacedSteps } from "../lib/paced-steps.ts";
import {
  type Codec,
  FrameError,
  type Greeting,
  type Operation,
  type Protocol,
  type Ref,
} from "../protocol/protocol.ts";
import type { Connection, ConnectionHandler } from "../transport/types.ts";
import { type ClosedSessions, endReason } from "./closed-sessions.ts";
import type { FrameTurns } from "./frame-turns.ts";
import { join, logIn, type OpeningContext, refusalReason } from "./opening.ts";
import { costOf, deliveryOf, type OperationPorts, operate, storedBytes } from "./operations.ts";
import {
  Admission,
  ConnectionRate,
  frameCost,
  type Reservation,
  SMALL_GREETING_BYTES,
} from "./rates.ts";
import { type Handshake, Session, sendFrames } from "./session.ts";

export interface ClientContext {
  /** All open clients of the node. Each client adds and removes itself. */
  readonly clients: Set<Client>;
  /** Protocols in the order in which they are tried on a client's first frame. */
  readonly protocols: readonly Protocol[];
  readonly loginDeadlines: Deadlines<Client>;
  readonly opening: OpeningContext;
  readonly operations: OperationPorts;
  readonly limits: {
    readonly maxInFlightOperations: number;
  };
  readonly turns: FrameTurns;
  /** Removals of sessions whose connections have closed. */
  readonly leaving: PacedSteps;
  readonly closedSessions: Pick<ClosedSessions, "add">;
  /** Reports an unexpected error, which is a bug. `context` is the log message. */
  onError(error: unknown, context: string): void;
}

/** Work that was charged for an operation before it ran, not counting the charge for its frame. */
interface Charge {
  readonly cost: number;
  readonly reserved: Reservation;
}

/** Close code for a message that is too big [RFC 6455 7.4.1]. */
const TOO_BIG = 1009;

interface ReceivedFrame {
  readonly data: Uint8Array;
  readonly isText: boolean;
  /** 0 if the rate limit allows the frame, otherwise the milliseconds that the client must wait. */
  readonly waitMs: number;
}

/** Maximum number of waiting frames per client. A client that exceeds it is disconnected. */
const MAX_WAITING_FRAMES = 4096;

/**
 * Size above which a refused frame does not wait, because refusing it costs less than copying it.
 * Does not apply to codecs with `splitsRequests`.
 */
const MAX_WAITING_REFUSAL_BYTES = 1024;

/**
 * Weight of deliveries in the work of an event-loop turn. It is higher than in the user's rate,
 * because the turn that handles a frame also writes all deliveries of the frame.
 */
const DELIVERIES_IN_TURN = 10;

export class Client implements ConnectionHandler {
  readonly #connection: Connection;
  /** `undefined` until the subprotocol or the first frame has selected the protocol. */
  #codec: Codec | undefined;
  readonly #context: ClientContext;
  readonly #rate: ConnectionRate;
  #admission: Admission | undefined;
  /**
   * `greeting` until a CONNECT arrives, `opening` while the login runs, `open` after the login was
   * accepted. While `open`, operations run, even those that arrive before the CONNACK is sent.
   */
  #status: "greeting" | "opening" | "open" | "closed" = "greeting";
  #session: Session | undefined;
  #inFlight = 0;
  /**
   * Frames that wait for their turn. `undefined` until the first frame must wait, because most
   * clients never wait.
   */
  #waiting: ReceivedFrame[] | undefined;
  #work = 0;
  /** Reason to end the connection as soon as its requests in progress have been answered. */
  #finishing: CloseReason | undefined;
  /** Fields of a CONNECT that has not been accepted yet, for the list of refused connects. */
  #greeting: Pick<Greeting, "flag" | "deviceId"> | undefined;
  /** Reason why the server ended a connection without a session. */
  #refusal: CloseReason | undefined;
  #lastError: ErrorCode | undefined;
  readonly #openedMs: number;
  readonly #handshake: Handshake | undefined;

  constructor(
    connection: Connection,
    codec: Codec | undefined,
    context: ClientContext,
    handshake?: Handshake,
  ) {
    this.#handshake = context.opening.connectHook === undefined ? undefined : handshake;
    this.#connection = connection;
    this.#codec = codec;
    this.#context = context;
    this.#openedMs = context.opening.clock();
    this.#rate = new ConnectionRate(context.opening.rates.limits, now);
    context.loginDeadlines.add(this, now());
    context.clients.add(this);
    this.#metrics().connectionOpened(connection.listener);
  }

  received(data: Uint8Array, isText: boolean): void {
    if (this.#isOver() || this.#finishing !== undefined) return;
    this.#metrics().frameIn(data.length);
    const nowMs = now();
    // The frame is charged before it waits for its turn, so that a client that exceeds the rate is
    // closed at once.
    const waitMs = this.#rate.frame(data.length, nowMs);
    if (waitMs > 0 && this.#rate.isExhausted(nowMs)) return this.end("rate_limited");
    const isRefusedAtOnce =
      waitMs > 0 && data.length > MAX_WAITING_REFUSAL_BYTES && !this.#splitsRequests;
    if (!isRefusedAtOnce && this.#mustWait(data.length, nowMs))
      this.#wait({ data, isText, waitMs });
    else this.#process({ data, isText, waitMs }, nowMs);
  }

  get #splitsRequests(): boolean {
    return this.#codec?.splitsRequests ?? false;
  }

  /** Returns true if a frame must wait. Later frames then wait too, to keep their order. */
  #mustWait(bytes: number, nowMs: number): boolean {
    if (this.#waiting !== undefined && this.#waiting.length > 0) return true;
    return this.#status === "open" ? this.#rate.isHeavy(nowMs) : bytes > SMALL_GREETING_BYTES;
  }

  #wait(frame: ReceivedFrame): void {
    const key = this.#session?.uid ?? `@${networkOf(this.#connection.remoteAddress)}`;
    const { length } = frame.data;
    this.#waiting ??= [];
    const hasRoom =
      this.#waiting.length < MAX_WAITING_FRAMES && this.#context.turns.add(key, this, length);
    if (!hasRoom) return this.end("rate_limited");
    const copy = new Uint8Array(frame.data); // the transport reuses the memory
    this.#waiting.push({ ...frame, data: copy });
  }

  processNext(): number {
    const frame = this.#waiting?.shift();
    if (frame === undefined) return 0;
    if (this.#isOver() || this.#finishing !== undefined) return 0;
    const nowMs = now();
    const { length } = frame.data;
    const waitMs = frame.waitMs || this.#rate.recheck(length, nowMs);
    this.#work = frameCost(length);
    if (waitMs > 0 && this.#rate.isExhausted(nowMs)) this.end("rate_limited");
    else this.#process({ ...frame, waitMs }, nowMs);
    return this.#work;
  }

  #process({ data, isText, waitMs }: ReceivedFrame, nowMs: number): void {
    if (waitMs > 0 && this.#status !== "open") return this.end("rate_limited");
    try {
      this.#codec ??= selectCodec(this.#context.protocols, data, isText);
      const codec = this.#codec;
      const isLarge = data.length > this.#maxFrameBytes;
      if (this.#status !== "open")
        return isLarge
          ? this.#refuseLargeBeforeLogin(data.length, nowMs)
          : this.#receiveConnect(codec, data, isText, nowMs);
      const refusal = isLarge ? codec.refuseLarge(data, this.#maxFrameBytes) : undefined;
      if (refusal !== undefined) return this.#rejectFrame(refusal);
      this.#admission ??= new Admission(this.#rate);
      const admission = this.#admission;
      admission.begin(waitMs, nowMs);
      for (const request of codec.decode(data, isText, admission.admit)) {
        if (request instanceof FrameError) this.#rejectFrame(request);
        else this.#handle(request, admission.bytes, nowMs);
        if (this.#isOver()) return;
      }
    } catch (error) {
      this.#rejectFrame(error);
    }
  }

  /**
   * Charges a WebSocket ping like a PING frame. A client that keeps exceeding the rate is closed.
   */
  pinged(bytes: number): void {
    if (this.#isOver() || this.#finishing !== undefined) return;
    const nowMs = now();
    const waitMs = this.#rate.frame(bytes, nowMs);
    if (waitMs > 0 && (this.#rate.isExhausted(nowMs) || this.#status !== "open"))
      this.end("rate_limited");
  }

  get #maxFrameBytes(): number {
    return this.#context.opening.clientLimits.maxFrameBytes;
  }

  /**
   * Closes a connection that sent a frame above the size limit before its login. Sends no ERROR.
   */
  #refuseLargeBeforeLogin(bytes: number, nowMs: number): void {
    this.#context.opening.greetings.take(this.#connection.remoteAddress, bytes, nowMs);
    this.#refusal = "protocol_error";
    this.#lastError = "too_large";
    this.#metrics().ended("protocol_error");
    this.#connection.end(TOO_BIG, `The frame has more than ${this.#maxFrameBytes} bytes`);
  }

  /**
   * Handles a frame that arrives before the login. The bytes of such frames are limited by a budget
   * that all clients in a network share.
   */
  #receiveConnect(codec: Codec, data: Uint8Array, isText: boolean, nowMs: number): void {
    const { greetings, rates } = this.#context.opening;
    // `take` charges nothing for frames of at most `SMALL_GREETING_BYTES` bytes.
    const networkWaitMs = greetings.take(this.#connection.remoteAddress, data.length, nowMs);
    if (networkWaitMs > 0) {
      this.#error(0, "rate_limited", { waitMs: networkWaitMs });
      return this.end("rate_limited");
    }
    const connect = codec.decodeConnect(data, isText);
    if (connect === undefined) return;
    if (this.#status !== "greeting") throw new FrameError("not_connected", connect.ref, "");
    const waitMs = rates.waitMs(connect.uid, nowMs);
    if (waitMs === 0) return void this.#open(connect, data.length, codec);
    this.#error(connect.ref, "rate_limited", { waitMs });
    this.end("rate_limited");
  }

  drained(): void {
    this.#session?.drained();
  }

  lagging(): void {
    if (this.#session !== undefined) this.#context.opening.catchUps.lag(this.#session);
  }

  closed(code: number): void {
    this.#status = "closed";
    const wasSlow = code === CLOSE_REASONS.slow_reader.code;
    const session = this.#session;
    const cause = session?.ended;
    session?.disconnected(wasSlow ? "slow_reader" : "goodbye");
    this.#context.loginDeadlines.delete(this);
    this.#context.clients.delete(this);
    this.#metrics().connectionClosed(this.#connection.listener);
    this.#noteClosed(code, cause);
    if (session !== undefined) this.#context.leaving.run(() => this.#leave(session, cause));
  }

  /** Removes the session from this node and from the directory. Never throws. */
  #leave(session: Session, cause: CloseReason | undefined): void {
    try {
      this.#metrics().ended(session.ended ?? "goodbye");
      this.#context.opening.expiry.stop(session);
      this.#context.opening.hub.leave(session);
    } catch (error) {
      this.#context.onError(error, "Could not remove a session whose connection has closed");
    }
    void this.#leaveDirectory(session, cause);
  }

  /**
   * Records the closed connection for the operator, unless the client left before its login was
   * accepted.
   */
  #noteClosed(code: number, cause: CloseReason | undefined): void {
    const ended = cause ?? this.#refusal;
    const session = this.#session;
    const isRefused = session?.isAdmitted !== true;
    if (isRefused && ended === undefined) return;
    const { closedSessions, opening } = this.#context;
    const { remoteAddress, listener } = this.#connection;
    const codec = this.#codec;
    const record = session?.record;
    const device = record ?? this.#greeting;
    closedSessions.add({
      isRefused,
      sessionId: session?.sessionId ?? "",
      uid: session?.uid ?? "",
      flag: device?.flag ?? 0,
      level: record?.level ?? 0,
      deviceId: device?.deviceId ?? "",
      address: remoteAddress,
      listener,
      format: codec?.format ?? "",
      version: codec?.version ?? 0,
      sinceMs: this.#openedMs,
      endedMs: opening.clock(),
      reason: endReason(ended, code),
      code,
      error: isRefused ? this.#lastError : undefined,
    });
  }

  end(reason: CloseReason): void {
    if (this.#isOver()) return;
    if (this.#session !== undefined) return this.#session.end(reason);
    this.#refusal = reason;
    this.#metrics().ended(reason);
    if (this.#codec !== undefined) {
      const push = { kind: "disconnect", reason } as const;
      sendFrames(this.#connection, this.#codec.encodePush(push));
    }
    const { code, message } = CLOSE_REASONS[reason];
    this.#connection.end(code, message);
  }

  /**
   * Ends the connection when its requests in progress have been answered. Ignores later frames,
   * which the client sends again after it has reconnected.
   */
  finish(reason: CloseReason): void {
    this.#finishing ??= reason;
    if (this.#inFlight === 0) this.end(reason);
  }

  #handle(operation: Operation, bytes: number, nowMs: number): void {
    if (this.#isOver() || this.#session === undefined) return;
    this.#operate(this.#session, operation, bytes, nowMs);
  }

  #operate(session: Session, operation: Operation, bytes: number, nowMs: number): void {
    if (this.#inFlight >= this.#context.limits.maxInFlightOperations)
      return this.#error(operation.ref, "overloaded");
    const bytesToStore = storedBytes(operation, bytes);
    const waitMs = bytesToStore > 0 ? this.#rate.store(bytesToStore, nowMs) : 0;
    if (waitMs > 0)
      return this.#error(operation.ref, "rate_limited", {
        waitMs,
        message: "The user is storing messages too fast. Wait before sending more messages.",
      });
    const { operations } = this.#context;
    const cost = costOf(operation, session, operations);
    const delivery = deliveryOf(operation, session, operations);
    const reserved = this.#rate.reserve(frameCost(bytes), cost, delivery);
    this.#work += 1 + cost + delivery * DELIVERIES_IN_TURN;
    this.#metrics().worked(operation.kind, frameCost(bytes) + delivery);
    try {
      const result = operate(session, operation, operations, reserved);
      if (result !== undefined) void this.#awaitResult(result, operation, { cost, reserved });
    } catch (error) {
      this.#rate.refund(reserved);
      this.#replyFailure(operation.ref, error);
    }
  }

  async #awaitResult(
    result: Promise<number | undefined>,
    { kind, ref }: Operation,
    charged: Charge,
  ): Promise<void> {
    this.#inFlight += 1;
    try {
      const { cost, reserved } = charged;
      const work = (await result) ?? cost;
      if (work !== cost) this.#rate.settle(reserved, work);
      if (work > 0) this.#metrics().worked(kind, work);
    } catch (error) {
      this.#rate.refund(charged.reserved);
      this.#replyFailure(ref, error);
    } finally {
      this.#inFlight -= 1;
      if (this.#finishing !== undefined) this.finish(this.#finishing);
    }
  }

  /** Opens the session. Its steps, from the CONNECT to the CONNACK, are in `opening.ts`. */
  async #open(connect: Greeting, bytes: number, codec: Codec): Promise<void> {
    const { opening, loginDeadlines } = this.#context;
    this.#status = "opening";
    this.#greeting = connect;
    try {
      const { maxHeldBytes, resendAfterMs, clock } = opening;
      const session = new Session({
        sessionId: opening.nextSessionId(),
        uid: connect.uid,
        connection: this.#connection,
        codec,
        maxHeldBytes,
        resendAfterMs,
        clock,
      });
      this.#session = session;
      session.handshake = this.#handshake;
      const request = { session, connect, bytes, rate: this.#rate };
      const login = await logIn(request, opening);
      loginDeadlines.delete(this);
      if (login.kind === "refused") return this.end(login.reason);
      this.#greeting = undefined;
      // If the connection closed during the login, `closed` had no record to remove yet.
      if (session.ended !== undefined) return this.#leaveDirectory(session);
      this.#status = "open";
      await join(request, login, opening);
    } catch (error) {
      await this.#openingFailed(connect.ref, error);
    }
  }

  async #openingFailed(ref: Ref, error: unknown): Promise<void> {
    const isAnswered = this.#session?.hasConnack === true;
    if (error instanceof FrameError && !isAnswered) {
      this.#rejectFrame(error);
      return this.end("protocol_error");
    }
    const ended = isTransient(error) ? await this.#endReason() : undefined;
    if (ended !== undefined) return this.end(ended);
    if (this.#isOver() && error instanceof BrokerError) return;
    // The catch-up may fail after the CONNACK. A request must not get two replies.
    if (isAnswered) this.#reportUnexpected(error);
    else this.#replyFailure(ref, error);
    this.end(refusalReason(error));
  }

  async #endReason(): Promise<CloseReason | undefined> {
    const record = this.#session?.record;
    if (record === undefined || this.#isOver()) return undefined;
    return this.#context.opening.directory.endedBy(record);
  }

  /** Removes the session from the directory, unless its removal has already begun. */
  async #leaveDirectory(session: Session, cause?: CloseReason): Promise<void> {
    const { record } = session;
    if (record === undefined) return;
    session.record = undefined;
    const { rates, directory } = this.#context.opening;
    rates.removeSession(record.uid, now());
    this.#metrics().sessionClosed(record.flag);
    try {
      await directory.remove(record, cause);
    } catch (error) {
      if (error instanceof BrokerError) return; // the directory repeats the removal later
      this.#context.onError(error, "Could not remove a session from the store");
    }
  }

  #replyFailure(ref: Ref, error: unknown): void {
    this.#reportUnexpected(error);
    if (!(error instanceof BrokerError)) return this.#error(ref, "internal");
    const { code, message, retryAfterMs: waitMs = 0 } = error;
    this.#error(ref, code, { waitMs, message });
  }

  #reportUnexpected(error: unknown): void {
    if (!(error instanceof BrokerError))
      this.#context.onError(error, "Could not run a client's operation");
  }

  #rejectFrame(error: unknown): void {
    if (!(error instanceof FrameError)) {
      this.#context.onError(error, "Could not handle a client's frame; the connection is closed");
      return this.end("protocol_error");
    }
    const { code, ref, message } = error;
    const waitMs = code === "rate_limited" ? (this.#admission?.waitMs ?? 0) : 0;
    this.#error(ref, code, { waitMs, message });
    if (waitMs > 0 && this.#rate.isExhausted(now())) return this.end("rate_limited");
    if (error.fatal || this.#status !== "open") this.end("protocol_error");
  }

  #error(
    ref: Ref,
    code: ErrorCode,
    { waitMs = 0, message = "" }: { waitMs?: number; message?: string } = {},
  ): void {
    this.#metrics().refused(code);
    this.#lastError = code;
    const retryAfterMs = waitMs;
    const reply = { kind: "error", ref, code, message, retryAfterMs } as const;
    try {
      if (this.#codec !== undefined) sendFrames(this.#connection, this.#codec.encodeReply(reply));
    } catch (error) {
      this.#closeUnanswered(error);
    }
  }

  /** Closes the connection, so that the client does not wait for a reply. Never throws. */
  #closeUnanswered(error: unknown): void {
    const { onError } = this.#context;
    onError(error, "Could not send an error reply to a client; the connection is closed");
    try {
      this.end("unavailable");
    } catch (cause) {
      onError(
        cause,
        "Could not end a session after an error reply failed; the connection is closed",
      );
      const { code, message } = CLOSE_REASONS.unavailable;
      this.#connection.end(code, message);
    }
  }

  #isOver(): boolean {
    return this.#status === "closed" || this.#session?.ended !== undefined;
  }

  #metrics(): OperationPorts["metrics"] {
    return this.#context.operations.metrics;
  }
}

function selectCodec(protocols: readonly Protocol[], data: Uint8Array, isText: boolean): Codec {
  const protocol = protocols.find((protocol) => protocol.speaks(data, isText));
  if (protocol !== undefined) return protocol.open();
  const text = "The first frame is not valid in any supported protocol. See docs/protocol.";
  throw new FrameError("malformed_frame", 0, text, true);
}

/** Returns the time used for rate limits. It must not depend on the system clock. */
function now(): number {
  return performance.now();
}
