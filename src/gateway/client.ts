// One client connection from its first byte to its last: decodes frames, limits their rate, opens the session on connect, runs operations.
// Status: greeting → opening → open → closed. A client's mistake is answered, never thrown; what is thrown here is a bug.

import {
  BrokerError,
  CLOSE_REASONS,
  type CloseReason,
  type ErrorCode,
} from "../broker/errors.ts";
import type { SessionRecord } from "../broker/model.ts";
import type { Sessions } from "../broker/sessions.ts";
import { TokenBucket } from "../lib/token-bucket.ts";
import {
  type Codec,
  type ConnectionLimits,
  FrameError,
  type Operation,
  type Ref,
} from "../protocol/protocol.ts";
import type { Connection, ConnectionHandler } from "../transport/types.ts";
import type { Hub } from "./hub.ts";
import {
  type JoinLimits,
  type JoinPorts,
  joinChannels,
  planJoin,
} from "./join.ts";
import { type OperationPorts, operate } from "./operations.ts";
import { Session } from "./session.ts";

type Connect = Extract<Operation, { readonly kind: "connect" }>;

/** What all clients of a node share. */
export interface ClientContext extends OperationPorts {
  /** All open clients of the node; each puts itself in and takes itself out. */
  readonly clients: Set<Client>;
  readonly hub: Hub;
  readonly sessions: Sessions;
  readonly join: JoinPorts & { readonly limits: JoinLimits };
  readonly nodeId: string;
  readonly protocolVersion: number;
  /** Told to the client in its connack. */
  readonly told: ConnectionLimits;
  readonly limits: {
    readonly authTimeoutMs: number;
    readonly frameBurst: number;
    readonly maxInFlightOperations: number;
    readonly maxHeldBytes: number;
    readonly maxSessionsPerUser: number;
  };
  nextSessionId(): string;
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
  #record: SessionRecord | undefined;
  #inFlight = 0;

  constructor(connection: Connection, codec: Codec, context: ClientContext) {
    this.#connection = connection;
    this.#codec = codec;
    this.#context = context;
    this.#bucket = new TokenBucket(
      context.told.maxFramesPerSecond,
      context.limits.frameBurst,
      context.clock(),
    );
    this.#deadline = setTimeout(
      () => this.end("auth_timeout"),
      context.limits.authTimeoutMs,
    );
    context.clients.add(this);
    context.metrics.connectionOpened();
  }

  received(data: Uint8Array, isText: boolean): void {
    if (this.#isOver()) return;
    const { metrics, clock } = this.#context;
    metrics.frameIn(data.length);
    const waitMs = this.#bucket.take(clock());
    if (waitMs > 0 && this.#bucket.exhausted) return this.end("rate_limited");
    try {
      for (const operation of this.#codec.decode(data, isText))
        if (waitMs > 0) this.#error(operation.ref, "rate_limited", waitMs);
        else this.#take(operation);
    } catch (error) {
      this.#malformed(error);
    }
  }

  drained(): void {
    this.#session?.drained();
  }

  closed(): void {
    this.#status = "closed";
    clearTimeout(this.#deadline);
    this.#context.clients.delete(this);
    this.#context.metrics.connectionClosed();
    if (this.#session !== undefined) {
      this.#session.gone();
      this.#context.hub.leave(this.#session);
    }
    if (this.#record !== undefined) this.#forget(this.#record);
  }

  #isOver(): boolean {
    return this.#status === "closed" || this.#session?.ended !== undefined;
  }

  #take(operation: Operation): void {
    if (this.#isOver()) return;
    if (this.#status === "open" && this.#session !== undefined)
      this.#operate(this.#session, operation);
    else if (this.#status === "greeting" && operation.kind === "connect") {
      this.#status = "opening";
      void this.#open(operation);
    } else {
      this.#error(operation.ref, "not_connected");
      this.end("protocol_error");
    }
  }

  #operate(session: Session, operation: Operation): void {
    const { maxInFlightOperations } = this.#context.limits;
    if (this.#inFlight >= maxInFlightOperations)
      return this.#error(operation.ref, "overloaded");
    try {
      const done = operate(session, operation, this.#context);
      if (done === undefined) return;
      this.#inFlight += 1;
      done
        .catch((error: unknown) => this.#failed(operation.ref, error))
        .finally(() => {
          this.#inFlight -= 1;
        });
    } catch (error) {
      this.#failed(operation.ref, error);
    }
  }

  /** Opens the session: enter the hub first, so that whoever ends this session from now on finds it. */
  async #open(connect: Connect): Promise<void> {
    const { hub, sessions, join } = this.#context;
    const session = this.#newSession(connect);
    try {
      this.#checkConnect(connect);
      this.#session = session;
      await hub.enter(session);
      const record = await sessions.open({
        ...connect,
        sessionId: session.sessionId,
        nodeId: this.#context.nodeId,
      });
      if (this.#isOver()) return this.#forget(record);
      this.#opened(record);
      const plan = await planJoin(session.uid, connect.resume, join);
      if (this.#isOver()) return;
      this.#acknowledge(connect.ref, session, plan.results);
      this.#status = "open";
      await joinChannels(session, plan, join);
    } catch (error) {
      this.#refuse(connect.ref, error);
    }
  }

  #newSession({ uid }: Connect): Session {
    return new Session({
      sessionId: this.#context.nextSessionId(),
      uid,
      codec: this.#codec,
      connection: this.#connection,
      maxHeldBytes: this.#context.limits.maxHeldBytes,
    });
  }

  #checkConnect({ version, uid }: Connect): void {
    const { hub, limits, protocolVersion } = this.#context;
    if (version !== protocolVersion)
      throw new BrokerError("unsupported_version");
    if (hub.sessionsOf(uid).length >= limits.maxSessionsPerUser)
      throw new BrokerError("overloaded", {
        message: `A user has at most ${limits.maxSessionsPerUser} sessions on a node`,
      });
  }

  #opened(record: SessionRecord): void {
    clearTimeout(this.#deadline);
    this.#deadline = undefined;
    this.#record = record;
    this.#context.metrics.sessionOpened(record.flag);
  }

  #acknowledge(
    ref: Ref,
    session: Session,
    resume: Extract<
      Parameters<Session["reply"]>[0],
      { kind: "connack" }
    >["resume"],
  ): void {
    const { protocolVersion, nodeId, clock, told } = this.#context;
    session.reply({
      kind: "connack",
      ref,
      version: protocolVersion,
      sessionId: session.sessionId,
      nodeId,
      serverTimeMs: clock(),
      limits: told,
      resume,
    });
  }

  /** Answers a connect that cannot be served, and closes in the way that tells the client whether to come back. */
  #refuse(ref: Ref, error: unknown): void {
    if (this.#isOver()) return;
    this.#failed(ref, error);
    const isBroker = error instanceof BrokerError;
    if (isBroker && error.code === "unsupported_version")
      this.end("protocol_error");
    else if (isBroker && REFUSED.has(error.code)) this.end("auth_failed");
    else this.end("unavailable");
  }

  #failed(ref: Ref, error: unknown): void {
    if (error instanceof BrokerError)
      return this.#error(
        ref,
        error.code,
        (error.retryAfterS ?? 0) * 1000,
        error.message,
      );
    this.#context.onBug(error, "an operation failed");
    this.#error(ref, "internal");
  }

  #malformed(error: unknown): void {
    if (!(error instanceof FrameError)) {
      this.#context.onBug(error, "a frame could not be handled");
      return this.end("protocol_error");
    }
    this.#error(error.ref, error.code, 0, error.message);
    if (error.fatal || this.#status === "greeting") this.end("protocol_error");
  }

  #error(ref: Ref, code: ErrorCode, retryAfterMs = 0, message = ""): void {
    this.#context.metrics.refused(code);
    this.#connection.send(
      this.#codec.encodeReply({
        kind: "error",
        ref,
        code,
        message,
        retryAfterMs,
      }),
    );
  }

  /** Says why and closes; harmless when it is closed. */
  end(reason: CloseReason): void {
    if (this.#isOver()) return;
    if (this.#session !== undefined) return this.#session.end(reason);
    this.#connection.send(
      this.#codec.encodePush({ kind: "disconnect", reason }),
    );
    const { code, message } = CLOSE_REASONS[reason];
    this.#connection.end(code, message);
  }

  #forget(record: SessionRecord): void {
    if (this.#record === record)
      this.#context.metrics.sessionClosed(record.flag);
    this.#context.sessions
      .close(record)
      .catch((error: unknown) =>
        this.#context.onBug(error, "a session could not be taken out"),
      );
  }
}

const REFUSED: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  "unauthorized",
  "reserved_uid",
  "bad_id",
  "bad_request",
]);
