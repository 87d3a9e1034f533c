// What the operations of connected clients need of the broker. Types only.

import type { Conversations } from "../broker/conversations.ts";
import type { Messages } from "../broker/messages.ts";
import type {
  ChannelStore,
  Clock,
  Cluster,
  InboxStore,
} from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { Streams } from "../broker/streams.ts";
import type { FairSemaphore } from "../lib/fair-semaphore.ts";
import type { Hub } from "./hub.ts";
import type { GatewayMetrics } from "./metrics.ts";
import type { PresenceWatch } from "./watch.ts";

export interface OperationPorts {
  readonly messages: Messages;
  readonly streams: Streams;
  readonly conversations: Conversations;
  readonly store: Pick<ChannelStore, "groupFacts"> &
    Pick<InboxStore, "acknowledgeCommands">;
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly directory: Pick<SessionDirectory, "presence">;
  readonly hub: Pick<Hub, "shown">;
  readonly watch: Pick<PresenceWatch, "watch">;
  /** In which the histories of all sessions begin. */
  readonly turns: FairSemaphore;
  readonly clock: Clock;
  readonly metrics: GatewayMetrics;
  /** Most bytes of messages in one reply with history or conversations. */
  readonly maxHistoryBytes: number;
}
