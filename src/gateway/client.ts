// One client connection from its first byte to its last: decodes frames, limits their rate, opens the session on connect, runs operations.
// Status: greeting → opening → open → closed. A client's mistake is answered, never thrown; what is thrown here is a bug.

import {
  BrokerError,
  CLOSE_REASONS,
  type CloseReason,
  type ErrorCode,
} from "../broker/errors.ts";
import { TokenBucket } from "../lib/token-bucket.ts";
import {
  type Codec,
  FrameError,
  type Operation,
  type Ref,
} from "../protocol/protocol.ts";
import type { Connection, ConnectionHandler } from "../transport/types.ts";
import {
  admit,
  type Connect,
  type OpeningContext,
  prepareSession,
  refusalReason,
  welcome,
} from "./opening.ts";
import { type OperationPorts, operate } from "./operations.ts";
import type { Session } from "./session.ts";

/** The session as the directory has it. */
type Admitted = Awaited<ReturnType<typeof admit>>;

/** What all clients of a node share. */
export interface ClientContext {
  /** All open clients of the node; each puts itself in and takes itself out. */
  readonly clients: Set<Client>;
  readonly opening: OpeningContext;
  readonly operations: OperationPorts;
  readonly limits: {
    readonly authTimeoutMs: number;
    /** 0 = no limit. */
    readonly maxFramesPerSecond: number;
    readonly frameBurst: number;
    readonly maxInFlightOperations: number;
  };
  /** A bug surfaced; `what` says where. */
  onBug(error: unknown, what: string): void;
}

export class Client implements ConnectionHandler {
  readonly #connection: Connection;
  readonly #codec: Codec;
  readonly #context: ClientContext;
  readonly #bucket: TokenBucket;
  #status: "greeting" | "opening" | "open" | "closed" = "greeting";
  #deadline: NodeJS.Timeout | undefined;
  #session: Session | undefined;
  #record: Admitted | undefined;
  #inFlight = 0;

  constructor(connection: Connection, codec: Codec, context: ClientContext) {
    const { authTimeoutMs, maxFramesPerSecond, frameBurst } = context.limits;
    this.#connection = connection;
    this.#codec = codec;
    this.#context = context;
    this.#bucket = new TokenBucket(maxFramesPerSecond, frameBurst, this.#now());
    this.#deadline = setTimeout(() => this.end("auth_timeout"), authTimeoutMs);
    context.clients.add(this);
    this.#metrics().connectionOpened();
  }

  received(data: Uint8Array, isText: boolean): void {
    if (this.#isOver()) return;
    this.#metrics().frameIn(data.length);
    const waitMs = this.#bucket.take(this.#now());
    if (waitMs > 0 && this.#bucket.exhausted) return this.end("rate_limited");
    try {
      for (const operation of this.#codec.decode(data, isText))
        if (waitMs > 0) this.#error(operation.ref, "rate_limited", { waitMs });
        else this.#take(operation);
    } catch (error) {
      this.#malformed(error);
    }
  }

  drained(): void {
    this.#session?.drained();
  }

  lagging(): void {
    if (this.#session !== undefined)
      this.#context.opening.hub.lagging(this.#session);
  }

  closed(code: number): void {
    this.#status = "closed";
    clearTimeout(this.#deadline);
    this.#context.clients.delete(this);
    this.#metrics().connectionClosed();
    if (this.#session !== undefined) {
      const cut = code === CLOSE_REASONS.slow_reader.code;
      this.#session.gone(cut ? "slow_reader" : "goodbye");
      this.#metrics().ended(this.#session.ended ?? "goodbye");
      this.#context.opening.hub.leave(this.#session);
    }
    void this.#leaveDirectory();
  }

  /** Tells the client why and closes; harmless when it is closed. */
  end(reason: CloseReason): void {
    if (this.#isOver()) return;
    if (this.#session !== undefined) return this.#session.end(reason);
    this.#metrics().ended(reason);
    const push = this.#codec.encodePush({ kind: "disconnect", reason });
    this.#connection.send(push);
    const { code, message } = CLOSE_REASONS[reason];
    this.#connection.end(code, message);
  }

  #take(operation: Operation): void {
    if (this.#isOver()) return;
    if (this.#status === "open" && this.#session !== undefined)
      this.#operate(this.#session, operation);
    else if (this.#status === "greeting" && operation.kind === "connect")
      void this.#open(operation);
    else {
      this.#error(operation.ref, "not_connected");
      this.end("protocol_error");
    }
  }

  #operate(session: Session, operation: Operation): void {
    if (this.#inFlight >= this.#context.limits.maxInFlightOperations)
      return this.#error(operation.ref, "overloaded");
    try {
      const done = operate(session, operation, this.#context.operations);
      if (done !== undefined) void this.#watch(done, operation.ref);
    } catch (error) {
      this.#failed(operation.ref, error);
    }
  }

  async #watch(done: Promise<void>, ref: Ref): Promise<void> {
    this.#inFlight += 1;
    try {
      await done;
    } catch (error) {
      this.#failed(ref, error);
    } finally {
      this.#inFlight -= 1;
    }
  }

  async #open(connect: Connect): Promise<void> {
    const { opening } = this.#context;
    const wire = { connection: this.#connection, codec: this.#codec };
    this.#status = "opening";
    try {
      this.#session = prepareSession(connect, wire, opening);
      const session = this.#session;
      const record = await opening.tokens.attempt(
        { address: this.#connection.remoteAddress, uid: connect.uid },
        () => opening.inTurn(() => admit(session, connect, opening)),
      );
      clearTimeout(this.#deadline);
      this.#deadline = undefined;
      this.#record = record;
      this.#metrics().sessionOpened(record.flag);
      if (this.#session.ended !== undefined) return this.#leaveDirectory();
      this.#status = "open";
      await welcome(this.#session, connect, opening);
    } catch (error) {
      if (this.#isOver() && error instanceof BrokerError) return;
      this.#failed(connect.ref, error);
      this.end(refusalReason(error));
    }
  }

  /** Once, whether the session ends before or after it was entered. */
  async #leaveDirectory(): Promise<void> {
    const record = this.#record;
    if (record === undefined) return;
    this.#record = undefined;
    this.#metrics().sessionClosed(record.flag);
    try {
      await this.#context.opening.sessions.close(record);
    } catch (error) {
      if (error instanceof BrokerError) return; // the cluster takes it out when it can
      this.#context.onBug(
        error,
        "A session could not be taken out of the directory",
      );
    }
  }

  #failed(ref: Ref, error: unknown): void {
    if (!(error instanceof BrokerError)) {
      this.#context.onBug(error, "An operation failed");
      return this.#error(ref, "internal");
    }
    const waitMs = (error.retryAfterS ?? 0) * 1000;
    this.#error(ref, error.code, { waitMs, message: error.message });
  }

  #malformed(error: unknown): void {
    if (!(error instanceof FrameError)) {
      this.#context.onBug(error, "A frame could not be handled");
      return this.end("protocol_error");
    }
    const { code, ref, message } = error;
    this.#error(ref, code, { message });
    if (error.fatal || this.#status === "greeting") this.end("protocol_error");
  }

  #error(
    ref: Ref,
    code: ErrorCode,
    { waitMs = 0, message = "" }: { waitMs?: number; message?: string } = {},
  ): void {
    this.#metrics().refused(code);
    this.#connection.send(
      this.#codec.encodeReply({
        kind: "error",
        ref,
        code,
        message,
        retryAfterMs: waitMs,
      }),
    );
  }

  #isOver(): boolean {
    return this.#status === "closed" || this.#session?.ended !== undefined;
  }

  #metrics(): OperationPorts["metrics"] {
    return this.#context.operations.metrics;
  }

  #now(): number {
    return this.#context.operations.clock();
  }
}
