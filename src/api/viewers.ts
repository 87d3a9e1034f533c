// Who may read a stream without a credential of the control plane: a user in the channel, with the token of one of its devices. State: none.

import { BrokerError } from "../broker/errors.ts";
import {
  type ChannelRef,
  type DeviceFlag,
  GROUP_CHANNEL,
  SYSTEM_UID,
} from "../broker/model.ts";
import type { ChannelStore, UserStore } from "../broker/ports.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { hashesEqual } from "../broker/tokens.ts";

export interface Viewer {
  readonly uid: string;
  readonly flag: DeviceFlag;
  /** SHA-256 of the token. */
  readonly tokenHash: Uint8Array;
}

export interface Viewers {
  /** Whether pages of `origin` may act for a viewer; "" comes from no page. */
  allowsOrigin(origin: string): boolean;
  /**
   * Resolves if the viewer may see the channel. Throws `unauthorized`, `not_in_channel`, `unavailable`, and `rate_limited` where `address`,
   * which a call has when its token comes for the first time, is in a network that guesses tokens.
   */
  admit(viewer: Viewer, channel: ChannelRef, address?: string): Promise<void>;
}

export interface ViewerParts {
  readonly store: Pick<UserStore, "device"> & Pick<ChannelStore, "groupFacts">;
  /** `none`: any token will do. */
  readonly clientAuth: "token" | "none";
  readonly allowsOrigin: (origin: string) => boolean;
  readonly tokens: Pick<TokenGate, "attempt">;
}

export function createViewers(parts: ViewerParts): Viewers {
  const { store, clientAuth, allowsOrigin, tokens } = parts;

  async function assertKnown({ uid, flag, tokenHash }: Viewer): Promise<void> {
    if (uid !== SYSTEM_UID) {
      if (clientAuth === "none") return;
      const device = await store.device(uid, flag);
      if (device !== undefined && hashesEqual(device.tokenHash, tokenHash))
        return;
    }
    throw new BrokerError("unauthorized", {
      message: "uid, device_flag and token do not match",
    });
  }

  return {
    allowsOrigin,

    async admit(viewer, channel, address) {
      const { uid } = viewer;
      if (address === undefined) await assertKnown(viewer);
      else await tokens.attempt({ address, uid }, () => assertKnown(viewer));
      if (channel.type !== GROUP_CHANNEL) return; // one's own conversation
      const facts = await store.groupFacts(channel.id, viewer.uid);
      if (!facts.isSubscriber) throw new BrokerError("not_in_channel");
    },
  };
}
