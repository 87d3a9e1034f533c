// All calls of the control plane by noun, over the use cases behind them. State: none.

import {
  type ChannelCalls,
  type ChannelParts,
  createChannelCalls,
} from "./channels.ts";
import {
  type ConversationCalls,
  type ConversationParts,
  createConversationCalls,
} from "./conversations.ts";
import {
  createEventCalls,
  type EventCalls,
  type EventParts,
} from "./events.ts";
import {
  createManagerCalls,
  type ManagerCalls,
  type ManagerParts,
} from "./managers.ts";
import {
  createMessageCalls,
  type MessageCalls,
  type MessageParts,
} from "./messages.ts";
import {
  createSystemCalls,
  type SystemCalls,
  type SystemParts,
} from "./system.ts";
import { createUserCalls, type UserCalls, type UserParts } from "./users.ts";

/** Everything the control plane calls. */
export interface CallParts
  extends UserParts,
    ChannelParts,
    MessageParts,
    EventParts,
    ConversationParts,
    ManagerParts,
    SystemParts {
  readonly messages: MessageParts["messages"];
}

export interface Calls {
  readonly users: UserCalls;
  readonly channels: ChannelCalls;
  readonly messages: MessageCalls;
  readonly events: EventCalls;
  readonly conversations: ConversationCalls;
  readonly managers: ManagerCalls;
  readonly system: SystemCalls;
}

export function createCalls(parts: CallParts): Calls {
  return {
    users: createUserCalls(parts),
    channels: createChannelCalls(parts),
    messages: createMessageCalls(parts),
    events: createEventCalls(parts),
    conversations: createConversationCalls(parts),
    managers: createManagerCalls(parts),
    system: createSystemCalls(parts),
  };
}
