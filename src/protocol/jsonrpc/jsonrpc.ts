// JSON-RPC 2.0 over a WebSocket, server side, in two forms: the form of WuKongIM's clients, and an
// extended form with all features of the native protocol, which a client selects with `protocol` in
// connect. The gateway replies to each request once and limits how many are open.

import { fieldText } from "../../lib/json-field.ts";
import {
  type Admit,
  type Codec,
  FrameError,
  type Frames,
  type Greeting,
  type Operation,
  type Protocol,
  type Push,
  type Ref,
  type Reply,
  type RequestLimits,
  type ResumePoint,
} from "../protocol.ts";
import {
  EXTENDED_VERSION,
  METHODS,
  type Method,
  readResumePoints,
  wantsExtended,
} from "./decode.ts";
import { type Document, parseDocument, splitDocuments } from "./documents.ts";
import { encodeExtended, errorResponse, resultOf, resultResponse } from "./encode.ts";
import { RPC_CODES, type RpcCode } from "./errors.ts";
import { GREETING_TOO_COMPLEX, MAX_GREETING_BYTES, scanFirstMessage } from "./first-message.ts";
import { isJsonObject, type JsonObject, Params } from "./params.ts";
import { type EchoedFields, encodeWukongim, headerFlags, wukongimResult } from "./wukongim.ts";

const SUBPROTOCOL = "jindou.jsonrpc.v1";
/** Names of the forms. Sessions with the same name share encoded frames. */
const EXTENDED_FORMAT = "jsonrpc";
const WUKONGIM_FORMAT = "jsonrpc-wukongim";

/** Maximum length of a request's id, limited because the id is stored until the response. */
const MAX_ID_LENGTH = 128;
/** Codes of a failed send that become an error in WuKongIM's form. Other codes become a result. */
const BAD_REQUESTS: ReadonlySet<string> = new Set(["bad_request", "malformed_frame"]);

/** Maximum length of the JSON text of a request's id or method, which may be escaped. */
const MAX_SHORT_TEXT = MAX_ID_LENGTH * 6 + 2;

const OPEN_OBJECT = 0x7b;
const BLANKS: readonly number[] = [0x20, 0x09, 0x0a, 0x0d];

export function createJsonRpcProtocol(limits: RequestLimits): Protocol {
  return {
    name: SUBPROTOCOL,
    speaks(data) {
      const first = data.subarray(0, MAX_GREETING_BYTES).find((byte) => !BLANKS.includes(byte));
      return first === OPEN_OBJECT;
    },
    open: () => new JsonRpcCodec(limits),
  };
}

interface OpenRequest extends EchoedFields {
  /** Id of the request, `undefined` if it has no valid id or needs no response. */
  readonly id: string | undefined;
  readonly method: string;
  readonly rpcCode: RpcCode | undefined;
}

class JsonRpcCodec implements Codec {
  readonly isPrivate = false;
  readonly #limits: RequestLimits;
  readonly #openRequests = new Map<Ref, OpenRequest>();
  #lastRef = 0;
  #form: "wukongim" | "extended" | undefined;
  #version: number | undefined;

  constructor(limits: RequestLimits) {
    this.#limits = limits;
  }

  get format(): string {
    return this.#form === "extended" ? EXTENDED_FORMAT : WUKONGIM_FORMAT;
  }

  /** Clients of the extended form resume channels instead of acknowledging. */
  get acknowledges(): boolean {
    return this.#form !== "extended";
  }

  get version(): number {
    return this.#version ?? EXTENDED_VERSION;
  }

  *decode(
    data: Uint8Array,
    _isText: boolean,
    admit: Admit = () => true,
  ): Generator<Operation | FrameError, void> {
    for (const { bytes, values } of splitDocuments(data)) {
      if (!admit(bytes.length, values)) {
        const refusal = this.#refuse(bytes);
        if (refusal !== undefined) yield refusal;
        continue;
      }
      const document = parseDocument(bytes);
      const request = this.#read(document);
      if (request !== undefined) yield request;
      if (document === undefined) return;
    }
  }

  decodeConnect(data: Uint8Array): Greeting {
    const message = scanFirstMessage(data);
    if (message === undefined)
      throw this.#malformed(RPC_CODES.invalidRequest, GREETING_TOO_COMPLEX, undefined);
    const request = this.#read(message.document);
    if (request instanceof FrameError) throw request;
    if (request?.kind !== "connect")
      throw new FrameError("not_connected", request?.ref ?? 0, "The first request must be connect");
    const { resume, ...connect } = request;
    const { resumeText } = message;
    const isSkipped = resumeText !== undefined && this.#form === "extended";
    const accept = () => (isSkipped ? this.#readResume(resumeText, connect.ref) : resume);
    return { ...connect, accept };
  }

  #readResume(text: Uint8Array, ref: Ref): readonly ResumePoint[] {
    const document = parseDocument(text);
    if (document === undefined)
      throw new FrameError("bad_request", ref, "resume is not valid JSON in UTF-8");
    const params = new Params({ resume: document.value }, ref);
    return readResumePoints(params, this.#limits);
  }

  /** Reads only the id and the method. Returns `undefined` if no response is expected. */
  #refuse(bytes: Uint8Array): FrameError | undefined {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString();
    const id = idOf({ id: shortField(text, "id") });
    if (id === undefined) return undefined;
    const method = shortField(text, "method");
    const request = { id, method: typeof method === "string" ? method : "" };
    return new FrameError("rate_limited", this.#register(request), "");
  }

  encodeReply(reply: Reply): Frames {
    const request = this.#openRequests.get(reply.ref);
    this.#openRequests.delete(reply.ref);
    if (reply.kind === "error" && !this.#isResult(reply.code, request))
      return errorResponse(request?.id, reply, request?.rpcCode);
    if (request?.id === undefined) return [];
    const result =
      this.#form === "extended" && reply.kind !== "error"
        ? resultOf(reply)
        : wukongimResult(reply, request);
    return result === undefined ? [] : resultResponse(request.id, result);
  }

  encodePush(push: Push): Frames {
    return this.#form === "extended" ? encodeExtended(push) : encodeWukongim(push);
  }

  /** WuKongIM's clients expect a result for a refused send. */
  #isResult(code: string, request: OpenRequest | undefined): boolean {
    return this.#form === "wukongim" && request?.method === "send" && !BAD_REQUESTS.has(code);
  }

  #register(request: Partial<OpenRequest>): Ref {
    this.#lastRef += 1;
    this.#openRequests.set(this.#lastRef, {
      id: undefined,
      method: "",
      rpcCode: undefined,
      header: undefined,
      clientTimestamp: 0,
      ...request,
    });
    return this.#lastRef;
  }

  #malformed(rpcCode: RpcCode, message: string, id: string | undefined): FrameError {
    return new FrameError("malformed_frame", this.#register({ id, rpcCode }), message);
  }

  #read(document: Document | undefined): Operation | FrameError | undefined {
    if (document === undefined) {
      const problem = "The message is not valid JSON in UTF-8";
      return this.#malformed(RPC_CODES.parseError, problem, undefined);
    }
    const { value, text } = document;
    if (!isJsonObject(value)) {
      const problem = "A request must be a JSON object, and batches are not supported";
      return this.#malformed(RPC_CODES.invalidRequest, problem, undefined);
    }
    return this.#readRequest(value, text);
  }

  #readRequest(request: JsonObject, text: string): Operation | FrameError | undefined {
    const { jsonrpc, method, id: rawId } = request;
    const id = idOf(request);
    const invalid = (problem: string) => this.#malformed(RPC_CODES.invalidRequest, problem, id);
    if (jsonrpc !== undefined && jsonrpc !== "2.0") return invalid('jsonrpc must be "2.0"');
    if (rawId !== undefined && id === undefined)
      return invalid(`id must be a string of 1 to ${MAX_ID_LENGTH} characters`);
    if (typeof method !== "string") return invalid("method must be a string");
    const handler = METHODS.get(method);
    if (handler === undefined || (handler.isExtended && this.#form === "wukongim"))
      return this.#malformed(
        RPC_CODES.methodNotFound,
        handler === undefined
          ? "The method does not exist"
          : `The method exists only in the extended protocol: send "protocol": ${EXTENDED_VERSION} in connect`,
        id,
      );
    if (id === undefined && !handler.isNotification) return invalid("The request must have an id");
    const { params = {} } = request;
    if (!isJsonObject(params))
      return this.#malformed(RPC_CODES.invalidParams, "params must be an object", id);
    return this.#readParams(
      new Params(params, this.#lastRef + 1, text),
      { id, method },
      handler.read,
    );
  }

  #readParams(
    params: Params,
    { id, method }: Pick<OpenRequest, "id" | "method">,
    read: Method["read"],
  ): Operation | FrameError | undefined {
    const { ref } = params;
    try {
      if (method === "connect") this.#form ??= wantsExtended(params) ? "extended" : "wukongim";
      else if (this.#form === undefined) throw params.refusal("not_connected", "");
      const isExtended = this.#form === "extended";
      const limits = this.#limits;
      const operation = read({ params, ref, limits, isExtended });
      if (operation?.kind === "connect") this.#version ??= operation.version;
      if (operation?.ref === ref)
        this.#register({ id, method, ...echoedFieldsOf(operation, params) });
      return operation;
    } catch (error) {
      if (!(error instanceof FrameError)) throw error;
      this.#register({ id, method });
      return error;
    }
  }
}

function echoedFieldsOf({ kind }: Operation, params: Params): Partial<EchoedFields> {
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

function idOf({ id }: JsonObject): string | undefined {
  const isId = typeof id === "string" && id !== "" && id.length <= MAX_ID_LENGTH;
  return isId ? id : undefined;
}

/** Returns `undefined` if the field is absent, too long or not valid JSON. */
function shortField(object: string, name: string): unknown {
  try {
    const text = fieldText(object, name)?.text ?? "";
    return text.length > MAX_SHORT_TEXT ? undefined : JSON.parse(text);
  } catch {
    return undefined;
  }
}
