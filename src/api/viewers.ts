// Decides who may read a stream: a viewer (a user of the channel who has a client token), or a
// caller that the guard authorizes.

import type { Credentials } from "../broker/credentials.ts";
import { BrokerError, ERRORS } from "../broker/errors.ts";
import type { ConnectHook } from "../broker/hooks.ts";
import { type ChannelRef, GROUP_CHANNEL, SYSTEM_UID } from "../broker/model.ts";
import type { ChannelStore, Clock, UserStore } from "../broker/ports.ts";
import { type Rights, requireRead, requireSend } from "../broker/rights.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { hashesEqual } from "../broker/tokens.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import type { Access, Guard } from "./guard.ts";
import type { ApiLog } from "./serve.ts";
import { type Audience, createStreamReader, presentsToken, type Viewer } from "./stream-request.ts";

export interface Viewers {
  /**
   * Returns true if pages from `origin` may act for a viewer. "" means that the request does not
   * come from a page.
   */
  allowsOrigin(origin: string): boolean;
  /**
   * Checks whether a viewer may use a channel, but does not apply the rules for sending. Returns
   * the time (Unix milliseconds) at which the feed must end according to the connect hook, or
   * `undefined` if the hook sets no end. Later checks of an open feed pass no `page` and do not
   * call the hook. Throws `unauthorized`, `token_expired`, `banned`, `not_in_channel`,
   * `refused_by_hook` or `unavailable`. Throws `forbidden` if the token does not allow this use,
   * and `rate_limited` if the user's budget is used up or too many wrong tokens came from
   * `address`.
   */
  admit(viewer: Viewer, channel: UsedChannel, page?: ViewerPage): Promise<number | undefined>;
  beginRead: ReadBudget["begin"];
  /** The store's clock. It determines when tokens and viewers' feeds expire. */
  readonly clock: Clock;
}

/** A channel, and whether a viewer reads it or sends to it. */
interface UsedChannel extends ChannelRef {
  readonly use: "read" | "send";
}

/** Source of a viewer's first request. `origin` is "" if the request does not come from a page. */
interface ViewerPage {
  readonly address: string;
  readonly origin: string;
}

/** Limits the work of a user's requests. The budget is shared with the user's frames. */
interface ReadBudget {
  /** Throws `rate_limited` if the budget is used up. */
  requirePaid(uid: string): void;
  /**
   * Charges a request to read a stream. The returned function must be called once with the number
   * of bytes in the reply. Throws the same errors as `requirePaid`.
   */
  begin(uid: string): (bytes: number) => void;
}

interface ViewerPorts {
  readonly store: Pick<UserStore, "device" | "isBanned"> & Pick<ChannelStore, "groupFacts">;
  readonly credentials: Credentials;
  readonly allowsOrigin: (origin: string) => boolean;
  readonly tokens: Pick<TokenGate, "attempt">;
  readonly budget: ReadBudget;
  readonly clock: Clock;
  /** `undefined` if no connect hook is configured. */
  readonly connectHook?: ConnectHook | undefined;
}

export function createViewers(ports: ViewerPorts): Viewers {
  const { store, credentials, allowsOrigin, tokens, budget, connectHook } = ports;

  /** Calls the connect hook for a viewer. Returns and throws as `admit` describes. */
  async function askHook(
    viewer: Viewer,
    channel: UsedChannel,
    page: ViewerPage,
  ): Promise<number | undefined> {
    const device = { ...viewer, deviceId: "", headers: {}, format: "http" };
    const restrictions = await connectHook?.ask({ ...device, ...page, isRefresh: false });
    requireUse(restrictions?.rights, channel);
    return restrictions?.expiresAtMs;
  }

  async function authenticate(viewer: Viewer): Promise<Rights | undefined> {
    const { uid, flag } = viewer;
    if (uid === SYSTEM_UID)
      throw new BrokerError("unauthorized", { message: ERRORS.reserved_uid.message });
    const proof = await credentials.prove(viewer);
    if (proof.kind === "none") return undefined;
    const device = await store.device(uid, flag);
    if (proof.kind === "jwt") {
      credentials.assertNotRevoked(proof.claims, device);
      return proof.claims.rights;
    }
    if (device !== undefined && hashesEqual(device.tokenHash, proof.tokenHash)) return undefined;
    throw await credentials.mismatch(viewer, proof.tokenHash);
  }

  return {
    allowsOrigin,
    clock: ports.clock,

    async admit(viewer, channel, page) {
      const { uid } = viewer;
      if (page !== undefined) budget.requirePaid(uid);
      const rights =
        page === undefined
          ? await authenticate(viewer)
          : await tokens.attempt({ address: page.address, uid }, () => authenticate(viewer));
      if (await store.isBanned(uid)) throw new BrokerError("banned");
      requireUse(rights, channel);
      if (channel.type === GROUP_CHANNEL) {
        const facts = await store.groupFacts(channel.id, uid);
        if (!facts.isSubscriber) throw new BrokerError("not_in_channel");
      } // a personal channel is always one of the viewer's own conversations
      return page === undefined ? undefined : askHook(viewer, channel, page);
    },

    beginRead: (uid) => budget.begin(uid),
  };
}

/** Throws `forbidden` unless the rights allow the use of the channel. */
function requireUse(rights: Rights | undefined, channel: UsedChannel): void {
  if (channel.use === "send") requireSend(rights, channel);
  else requireRead(rights, channel);
}

/**
 * Permissions that allow a backend to read streams. One of them is enough. `messages:write` is
 * included because it already allows a backend to read history, which contains the streams.
 */
export const STREAM_ACCESS = ["messages:write", "events:write"] as const satisfies Access;

export interface AdmissionPorts {
  readonly viewers: Viewers;
  readonly log: Pick<ApiLog, "error">;
}

/** Checks a viewer's request before it is served, and again while its feed is open. */
type ViewerCheck = (
  request: HttpRequest,
  target: { readonly viewer: Viewer; readonly channel: UsedChannel },
  isFirst: boolean,
) => Promise<HttpReply | undefined>;

export function createViewerCheck(viewers: Omit<Viewers, "beginRead">): ViewerCheck {
  /** Time (Unix milliseconds) at which the feed of a request must end according to the hook. */
  const ends = new WeakMap<HttpRequest, number>();
  return async (request, { viewer, channel }, isFirst) => {
    const { origin = "" } = request.headers;
    if (!viewers.allowsOrigin(origin))
      return errorReply("forbidden", {
        message:
          "Web pages from this origin are not allowed; add the origin to client.allowedOrigins",
      });
    const page = isFirst ? { origin, address: request.remoteAddress } : undefined;
    const endsAtMs = await viewers.admit(viewer, channel, page);
    if (endsAtMs !== undefined) ends.set(request, endsAtMs);
    if ((ends.get(request) ?? Number.POSITIVE_INFINITY) <= viewers.clock())
      return errorReply("token_expired");
    return undefined;
  };
}

export function createStreamAdmission({ viewers, log }: AdmissionPorts, audience: Audience) {
  const read = createStreamReader(audience);
  const admitViewer = createViewerCheck(viewers);

  function check(request: HttpRequest, guard: Guard, isFirst: boolean): ReturnType<Guard> {
    const result = read(request);
    // `run` replies with 400 to a request that cannot be parsed. Unless the
    // audience is `viewers`, a caller without a client token must be authorized first.
    if ("refusal" in result)
      return audience === "viewers" || presentsToken(request)
        ? undefined
        : guard(request, STREAM_ACCESS);
    const { viewer, channel } = result.value;
    if (viewer === undefined) return guard(request, STREAM_ACCESS);
    return admitViewer(request, { viewer, channel: { ...channel, use: "read" } }, isFirst);
  }

  return {
    admit: (request: HttpRequest, guard: Guard) => check(request, guard, true),

    /** Resolves to true if the caller may continue. Never rejects. */
    async stillAdmits(request: HttpRequest, guard: Guard): Promise<boolean> {
      try {
        return (await check(request, guard, false)) === undefined;
      } catch (error) {
        // A failed check also ends the feed. The reader reconnects and is checked again.
        if (!(error instanceof BrokerError))
          log.error({ err: error }, "Could not check whether a reader may still read a stream");
        return false;
      }
    },
  };
}
