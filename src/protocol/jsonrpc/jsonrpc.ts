// JSON-RPC 2.0 over a WebSocket on the server, in two forms: as WuKongIM's clients speak it, and an
// extended one with everything native can do, chosen by `protocol` in connect. State per
// connection: the form, and the requests without an answer. The gateway answers each request once
// and bounds how many are open, and so these.

import {
  type Codec,
  FrameError,
  type Frames,
  type Operation,
  type Protocol,
  type Push,
  type Ref,
  type Reply,
  type RequestLimits,
} from "../protocol.ts";
import { EXTENDED_VERSION, METHODS, type Method, wantsExtended } from "./decode.ts";
import { type Document, readDocuments } from "./documents.ts";
import { answer, encodeExtended, failure, resultOf } from "./encode.ts";
import { RPC_CODES, type RpcCode } from "./errors.ts";
import { isJsonObject, type JsonObject, Params } from "./params.ts";
import { type Asked, encodeWukongim, headerFlags, wukongimResult } from "./wukongim.ts";

const SUBPROTOCOL = "jindou.jsonrpc.v1";
/** Names of the forms, by which sessions share frames. */
const EXTENDED_FORMAT = "jsonrpc";
const WUKONGIM_FORMAT = "jsonrpc-wukongim";

/** Characters of an id: each open request keeps its own. */
const MAX_ID_LENGTH = 128;
/** Refusals of a send that are no result: the request itself is wrong. */
const BAD_REQUESTS: ReadonlySet<string> = new Set(["bad_request", "malformed_frame"]);

const OPEN_OBJECT = 0x7b;
/** Space, tab, line feed, carriage return. */
const BLANKS: readonly number[] = [0x20, 0x09, 0x0a, 0x0d];

export function createJsonRpcProtocol(limits: RequestLimits): Protocol {
  return {
    name: SUBPROTOCOL,
    speaks(data) {
      const first = data.find((byte) => !BLANKS.includes(byte));
      return first === OPEN_OBJECT;
    },
    open: () => new JsonRpcCodec(limits),
  };
}

/** A request without an answer. */
interface Open extends Asked {
  /** Undefined: it has none that can be read, or needs no answer. */
  readonly id: string | undefined;
  readonly method: string;
  /** Of the request's form; undefined: it has the form of a request. */
  readonly rpcCode: RpcCode | undefined;
}

class JsonRpcCodec implements Codec {
  readonly isPrivate = false;
  readonly #limits: RequestLimits;
  readonly #open = new Map<Ref, Open>();
  #lastRef = 0;
  /** Undefined until connect. */
  #form: "wukongim" | "extended" | undefined;
  #version: number | undefined;

  constructor(limits: RequestLimits) {
    this.#limits = limits;
  }

  get format(): string {
    return this.#form === "extended" ? EXTENDED_FORMAT : WUKONGIM_FORMAT;
  }

  /** The extended form resumes. */
  get acknowledges(): boolean {
    return this.#form !== "extended";
  }

  get version(): number {
    return this.#version ?? EXTENDED_VERSION;
  }

  decode(data: Uint8Array): readonly (Operation | FrameError)[] {
    const requests: (Operation | FrameError)[] = [];
    for (const document of readDocuments(data)) {
      const request = this.#read(document);
      if (request !== undefined) requests.push(request);
    }
    return requests;
  }

  refsOf(data: Uint8Array): readonly Ref[] {
    return readDocuments(data).flatMap((document) => {
      const { value } = document ?? {};
      if (!isJsonObject(value)) return [];
      const id = idOf(value);
      const method = typeof value.method === "string" ? value.method : "";
      return id === undefined ? [] : [this.#ask({ id, method })];
    });
  }

  encodeReply(reply: Reply): Frames {
    const open = this.#open.get(reply.ref);
    this.#open.delete(reply.ref);
    if (reply.kind === "error" && !this.#isResult(reply.code, open))
      return failure(open?.id, reply, open?.rpcCode);
    if (open?.id === undefined) return [];
    const result =
      this.#form === "extended" && reply.kind !== "error"
        ? resultOf(reply)
        : wukongimResult(reply, open);
    return result === undefined ? [] : answer(open.id, result);
  }

  encodePush(push: Push): Frames {
    return this.#form === "extended" ? encodeExtended(push) : encodeWukongim(push);
  }

  /** WuKongIM's clients get the refusal of a send as a result. */
  #isResult(code: string, open: Open | undefined): boolean {
    return this.#form === "wukongim" && open?.method === "send" && !BAD_REQUESTS.has(code);
  }

  #ask(open: Partial<Open>): Ref {
    this.#lastRef += 1;
    this.#open.set(this.#lastRef, {
      id: undefined,
      method: "",
      rpcCode: undefined,
      header: undefined,
      clientTimestamp: 0,
      ...open,
    });
    return this.#lastRef;
  }

  /** A request that is refused for its form. */
  #malformed(rpcCode: RpcCode, message: string, id: string | undefined): FrameError {
    return new FrameError("malformed_frame", this.#ask({ id, rpcCode }), message);
  }

  #read(document: Document): Operation | FrameError | undefined {
    if (document === undefined) {
      const problem = "The message is not one JSON object in UTF-8";
      return this.#malformed(RPC_CODES.parseError, problem, undefined);
    }
    const { value } = document;
    if (!isJsonObject(value)) {
      const problem = "A request is an object; batches are not supported";
      return this.#malformed(RPC_CODES.invalidRequest, problem, undefined);
    }
    return this.#readRequest(value);
  }

  #readRequest(request: JsonObject): Operation | FrameError | undefined {
    const { jsonrpc, method, id: anyId } = request;
    const id = idOf(request);
    const invalid = (problem: string) => this.#malformed(RPC_CODES.invalidRequest, problem, id);
    if (jsonrpc !== undefined && jsonrpc !== "2.0") return invalid('jsonrpc must be "2.0"');
    if (anyId !== undefined && id === undefined)
      return invalid(`id must be a string of 1 to ${MAX_ID_LENGTH} characters`);
    if (typeof method !== "string") return invalid("method must be a string");
    const found = METHODS.get(method);
    if (found === undefined || (found.isExtended && this.#form === "wukongim"))
      return this.#malformed(
        RPC_CODES.methodNotFound,
        found === undefined
          ? "There is no such method"
          : `The method needs "protocol": ${EXTENDED_VERSION} in connect`,
        id,
      );
    if (id === undefined && !found.isNotification) return invalid("The request needs an id");
    const { params = {} } = request;
    if (!isJsonObject(params))
      return this.#malformed(RPC_CODES.invalidParams, "params must be an object", id);
    return this.#readParams(params, { id, method }, found.read);
  }

  #readParams(
    fields: JsonObject,
    { id, method }: Pick<Open, "id" | "method">,
    read: Method["read"],
  ): Operation | FrameError | undefined {
    const ref = this.#lastRef + 1;
    const params = new Params(fields, ref);
    try {
      if (method === "connect") this.#form ??= wantsExtended(params) ? "extended" : "wukongim";
      else if (this.#form === undefined) throw params.refusal("not_connected", "");
      const isExtended = this.#form === "extended";
      const limits = this.#limits;
      const operation = read({ params, ref, limits, isExtended });
      if (operation?.kind === "connect") this.#version ??= operation.version;
      if (operation?.ref === ref) this.#ask({ id, method, ...askedBy(operation, params) });
      return operation;
    } catch (error) {
      if (!(error instanceof FrameError)) throw error;
      this.#ask({ id, method });
      return error;
    }
  }
}

/** What the answer in WuKongIM's form repeats of the request. */
function askedBy({ kind }: Operation, params: Params): Partial<Asked> {
  switch (kind) {
    case "connect": {
      const max = Number.MAX_SAFE_INTEGER;
      return { clientTimestamp: params.uint("clientTimestamp", max, 0) };
    }
    case "send": {
      const header = params.object("header");
      return { header: headerFlags((flag) => header.bool(flag)) };
    }
    default:
      return {};
  }
}

/** Undefined: it has none, or none that can be taken. */
function idOf({ id }: JsonObject): string | undefined {
  const isId = typeof id === "string" && id !== "" && id.length <= MAX_ID_LENGTH;
  return isId ? id : undefined;
}
