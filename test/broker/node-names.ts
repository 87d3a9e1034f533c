// Short constructors of channels for tests. Keeps no state.

import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";

export const group = (id: string): ChannelRef => ({ id, type: GROUP_CHANNEL });
export const person = (id: string): ChannelRef => ({
  id,
  type: PERSON_CHANNEL,
});
