// The readers of a stream that are admitted: a viewer, that is a user in the channel with the token
// of one of its devices, or a caller the guard admits. State: none.

import { BrokerError } from "../broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL, SYSTEM_UID } from "../broker/model.ts";
import type { ChannelStore, UserStore } from "../broker/ports.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { hashesEqual } from "../broker/tokens.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import type { Access, Guard } from "./guard.ts";
import type { ApiLog } from "./serve.ts";
import { type Audience, createStreamReader, presentsToken, type Viewer } from "./stream-request.ts";

export interface Viewers {
  /** Whether pages of `origin` may act for a viewer; "" is no page. */
  allowsOrigin(origin: string): boolean;
  /**
   * Resolves if the viewer may see the channel. Throws `unauthorized`, `not_in_channel`,
   * `unavailable`, and `rate_limited` if `address` is in a network that guesses tokens. Only the
   * call that presents a token first has an `address`.
   */
  admit(viewer: Viewer, channel: ChannelRef, address?: string): Promise<void>;
}

interface ViewerParts {
  readonly store: Pick<UserStore, "device"> & Pick<ChannelStore, "groupFacts">;
  /** `none`: any token is accepted. */
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
      if (device !== undefined && hashesEqual(device.tokenHash, tokenHash)) return;
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
      if (channel.type !== GROUP_CHANNEL) return; // the viewer's own conversation
      const facts = await store.groupFacts(channel.id, uid);
      if (!facts.isSubscriber) throw new BrokerError("not_in_channel");
    },
  };
}

/** A stream is history, which needs the permission to write messages. */
export const STREAM_ACCESS = ["messages:write", "events:write"] as const satisfies Access;

export interface AdmissionParts {
  readonly viewers: Viewers;
  readonly log: Pick<ApiLog, "error">;
}

export function createStreamAdmission({ viewers, log }: AdmissionParts, audience: Audience) {
  const read = createStreamReader(audience);

  async function admitViewer(
    viewer: Viewer,
    channel: ChannelRef,
    { origin, address }: { readonly origin: string; readonly address?: string },
  ): Promise<HttpReply | undefined> {
    if (!viewers.allowsOrigin(origin))
      return errorReply("forbidden", {
        message: "Pages of this origin may not act for users",
      });
    await viewers.admit(viewer, channel, address);
    return undefined;
  }

  function judge(request: HttpRequest, guard: Guard, isFirst: boolean): ReturnType<Guard> {
    const asked = read(request);
    // A request that cannot be read gets its 400 from `run`, but only if viewers may call.
    if ("refused" in asked)
      return audience === "viewers" || presentsToken(request)
        ? undefined
        : guard(request, STREAM_ACCESS);
    const { viewer, channel } = asked.value;
    if (viewer === undefined) return guard(request, STREAM_ACCESS);
    const { origin = "" } = request.headers;
    return admitViewer(
      viewer,
      channel,
      isFirst ? { origin, address: request.remoteAddress } : { origin },
    );
  }

  return {
    /** The reply that refuses the call, or undefined. */
    admit: (request: HttpRequest, guard: Guard) => judge(request, guard, true),

    /** Whether an admitted caller would be admitted now. Does not reject. */
    async stillAdmits(request: HttpRequest, guard: Guard): Promise<boolean> {
      try {
        return (await judge(request, guard, false)) === undefined;
      } catch (error) {
        // If the check fails the reader is ended too: it reconnects and is checked anew.
        if (!(error instanceof BrokerError))
          log.error({ err: error }, "A reader of a stream could not be checked");
        return false;
      }
    },
  };
}
