// All calls of the control plane by noun, over the use cases behind them. State: none.

import {
  type ChannelCalls,
  type ChannelParts,
  createChannelCalls,
} from "./channels.ts";
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
    ManagerParts,
    SystemParts {}

export interface Calls {
  readonly users: UserCalls;
  readonly channels: ChannelCalls;
  readonly messages: MessageCalls;
  readonly managers: ManagerCalls;
  readonly system: SystemCalls;
}

export function createCalls(parts: CallParts): Calls {
  return {
    users: createUserCalls(parts),
    channels: createChannelCalls(parts),
    messages: createMessageCalls(parts),
    managers: createManagerCalls(parts),
    system: createSystemCalls(parts),
  };
}
