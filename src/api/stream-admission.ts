// Who may read a stream: a viewer with a token of its own, or whoever the guard lets through. State: none.

import { BrokerError } from "../broker/errors.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import type { Access, Guard } from "./guard.ts";
import type { ApiLog } from "./serve.ts";
import {
  type Audience,
  createStreamReader,
  presentsToken,
  type StreamRequest,
} from "./stream-request.ts";
import type { Viewers } from "./viewers.ts";

/** A stream is history, and that is for who may write messages. */
export const STREAM_ACCESS = [
  "messages:write",
  "events:write",
] as const satisfies Access;

export interface StreamAdmission {
  /** The reply that refuses the call, or undefined. */
  admit(request: HttpRequest, guard: Guard): ReturnType<Guard>;
  /** Whether who was admitted would be so now. Does not reject. */
  stillAdmits(request: HttpRequest, guard: Guard): Promise<boolean>;
}

export interface AdmissionParts {
  readonly viewers: Viewers;
  readonly log: Pick<ApiLog, "error">;
}

export function createStreamAdmission(
  { viewers, log }: AdmissionParts,
  audience: Audience,
): StreamAdmission {
  const read = createStreamReader(audience);

  /** The call cannot be read and will be refused for that; a stranger is told so only where viewers may call. */
  function admitUnread(request: HttpRequest, guard: Guard): ReturnType<Guard> {
    return audience === "viewers" || presentsToken(request)
      ? undefined
      : guard(request, STREAM_ACCESS);
  }

  async function admitViewer(
    { viewer, channel }: StreamRequest,
    { origin, address }: { readonly origin: string; readonly address?: string },
  ): Promise<HttpReply | undefined> {
    if (!viewers.allowsOrigin(origin))
      return errorReply("forbidden", {
        message: "Pages of this origin may not act for users",
      });
    if (viewer !== undefined) await viewers.admit(viewer, channel, address);
    return undefined;
  }

  function judge(
    request: HttpRequest,
    guard: Guard,
    isFirst: boolean,
  ): ReturnType<Guard> {
    const asked = read(request);
    if ("refused" in asked) return admitUnread(request, guard);
    if (asked.value.viewer === undefined) return guard(request, STREAM_ACCESS);
    const { origin = "" } = request.headers;
    return admitViewer(
      asked.value,
      isFirst ? { origin, address: request.remoteAddress } : { origin },
    );
  }

  return {
    admit: (request, guard) => judge(request, guard, true),

    async stillAdmits(request, guard) {
      try {
        return (await judge(request, guard, false)) === undefined;
      } catch (error) {
        // Where it cannot be told, the reader goes too: it comes back and is judged anew.
        if (!(error instanceof BrokerError))
          log.error(
            { err: error },
            "A reader of a stream could not be checked",
          );
        return false;
      }
    },
  };
}
