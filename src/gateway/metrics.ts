// What the gateway tells the metrics table. A narrow port, so that the gateway names no metric.

import type { CloseReason, ErrorCode } from "../broker/errors.ts";
import type { ChannelType, DeviceFlag } from "../broker/model.ts";
import type { OperationKind } from "../protocol/protocol.ts";

export interface GatewayMetrics {
  connectionOpened(): void;
  connectionClosed(): void;
  sessionOpened(flag: DeviceFlag): void;
  sessionClosed(flag: DeviceFlag): void;
  /** The server closed a connection, for this reason. */
  ended(reason: CloseReason): void;
  frameIn(bytes: number): void;
  /** So much work was done for operations of a kind, in frames. */
  worked(kind: OperationKind, frames: number): void;
  /** A message of a socket became durable, `ms` after it came in. */
  sent(type: ChannelType, ms: number): void;
  refused(code: ErrorCode): void;
  /** A client confirmed a message, `ms` after it was accepted. */
  acknowledged(ms: number): void;
  /** A run of so many missed messages went out. */
  resumed(messages: number): void;
  /** An event went out to so many sessions. */
  eventPushed(sessions: number): void;
  /** A session that lagged or joined was given so many streams from the store, merged. */
  caughtUp(streams: number): void;
  /** So many more (negative: fewer) are being given what they missed and the streams that go on: sessions, and their groups. */
  catchingUp(by: number): void;
  /** Copies of commands went out. */
  commandsPushed(copies: number): void;
  /** Clients took so many commands out of their inboxes. */
  commandsAcknowledged(commands: number): void;
}
