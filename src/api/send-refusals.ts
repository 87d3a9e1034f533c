// Explains to a backend why its message or event was refused [decisions: Send to a group that was
// never created]. Keeps no state.

import type { Channels } from "../broker/channels.ts";
import { BrokerError, type ErrorCode, type SendRefusal } from "../broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "../broker/model.ts";
import type { HttpReply } from "../transport/types.ts";
import { errorReply } from "./errors.ts";

export const SEND_REFUSALS = [
  "channel_banned",
  "send_banned",
  "not_subscriber",
  "stranger_refused",
  "denylisted",
  "not_allowlisted",
  "channel_disbanded",
] as const satisfies readonly SendRefusal[];

/**
 * Returns the reply to a send that was refused because its group does not exist. Rethrows any other
 * error.
 */
export type ExplainRefusal = (error: unknown, channel: ChannelRef) => Promise<HttpReply>;

/**
 * Creates an `ExplainRefusal`. It reads a channel only after a refusal, so that accepted messages
 * cause no additional work.
 */
export function createExplainRefusal(channels: Pick<Channels, "state">): ExplainRefusal {
  async function exists(channel: ChannelRef): Promise<boolean> {
    try {
      await channels.state(channel);
      return true;
    } catch (error) {
      if (hasCode(error, "channel_not_found")) return false;
      throw error;
    }
  }

  return async (error, channel) => {
    const mayBeMissing = channel.type === GROUP_CHANNEL && hasCode(error, "not_subscriber");
    if (!mayBeMissing || (await exists(channel))) throw error;
    return errorReply("channel_not_found", {
      status: 403,
      message: `The group ${channel.id} does not exist; create it with POST /channel`,
      details: [{ path: "channel_id", message: "does not exist" }],
    });
  };
}

export function hasCode(error: unknown, code: ErrorCode): boolean {
  return error instanceof BrokerError && error.code === code;
}
