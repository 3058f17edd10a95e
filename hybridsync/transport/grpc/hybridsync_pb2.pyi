from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("num_bytes", "push", "reply")
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    push: Push
    reply: PushReply
    def __init__(self, num_bytes: _Optional[int] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., reply: _Optional[_Union[PushReply, _Mapping]] = ...) -> None: ...

class SmallPush(_message.Message):
    __slots__ = ("push", "contribution")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    push: Push
    contribution: bytes
    def __init__(self, push: _Optional[_Union[Push, _Mapping]] = ..., contribution: _Optional[bytes] = ...) -> None: ...

class SmallReply(_message.Message):
    __slots__ = ("reply", "parameters")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    reply: PushReply
    parameters: bytes
    def __init__(self, reply: _Optional[_Union[PushReply, _Mapping]] = ..., parameters: _Optional[bytes] = ...) -> None: ...

class LinkRequest(_message.Message):
    __slots__ = ("call", "token", "push", "num_bytes", "snapshot_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    call: str
    token: str
    push: Push
    num_bytes: int
    snapshot_id: int
    def __init__(self, call: _Optional[str] = ..., token: _Optional[str] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., num_bytes: _Optional[int] = ..., snapshot_id: _Optional[int] = ...) -> None: ...

class LinkReply(_message.Message):
    __slots__ = ("reply", "non_finite", "slab", "error", "text", "answers", "num_bytes")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    reply: PushReply
    non_finite: str
    slab: int
    error: str
    text: str
    answers: bool
    num_bytes: int
    def __init__(self, reply: _Optional[_Union[PushReply, _Mapping]] = ..., non_finite: _Optional[str] = ..., slab: _Optional[int] = ..., error: _Optional[str] = ..., text: _Optional[str] = ..., answers: _Optional[bool] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("num_sockets",)
    NUM_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    num_sockets: int
    def __init__(self, num_sockets: _Optional[int] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("port", "connection_id", "key")
    PORT_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    port: int
    connection_id: bytes
    key: bytes
    def __init__(self, port: _Optional[int] = ..., connection_id: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("phase_id", "final", "place")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    final: bool
    place: int
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., final: _Optional[bool] = ..., place: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("snapshot_id", "num_bytes")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: int
    num_bytes: int
    def __init__(self, snapshot_id: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class EvaluationRequest(_message.Message):
    __slots__ = ("source", "snapshot_id", "fingerprint")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    source: str
    snapshot_id: int
    fingerprint: str
    def __init__(self, source: _Optional[str] = ..., snapshot_id: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("phase_id", "worker", "incarnation")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    worker: int
    incarnation: int
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Updates(_message.Message):
    __slots__ = ("phase_id", "updates")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    updates: _containers.RepeatedCompositeFieldContainer[Update]
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., updates: _Optional[_Iterable[_Union[Update, _Mapping]]] = ...) -> None: ...

class StageReply(_message.Message):
    __slots__ = ("non_finite",)
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    non_finite: str
    def __init__(self, non_finite: _Optional[str] = ...) -> None: ...

class PartSnapshotRequest(_message.Message):
    __slots__ = ("phase_id", "sequence", "final", "left")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    sequence: int
    final: bool
    left: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., sequence: _Optional[int] = ..., final: _Optional[bool] = ..., left: _Optional[_Iterable[int]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class PhaseId(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: int
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("id", "spec", "members", "device_choice", "end_units", "applied", "dropped", "sequence", "source", "snapshot_id", "fingerprint", "servers", "reason", "shares", "order", "evaluate_units")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CHOICE_FIELD_NUMBER: _ClassVar[int]
    END_UNITS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_UNITS_FIELD_NUMBER: _ClassVar[int]
    id: PhaseId
    spec: str
    members: _containers.RepeatedScalarFieldContainer[int]
    device_choice: int
    end_units: int
    applied: _containers.RepeatedCompositeFieldContainer[Range]
    dropped: _containers.RepeatedCompositeFieldContainer[Range]
    sequence: int
    source: str
    snapshot_id: int
    fingerprint: str
    servers: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    shares: _containers.RepeatedScalarFieldContainer[int]
    order: int
    evaluate_units: int
    def __init__(self, id: _Optional[_Union[PhaseId, _Mapping]] = ..., spec: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ..., device_choice: _Optional[int] = ..., end_units: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., sequence: _Optional[int] = ..., source: _Optional[str] = ..., snapshot_id: _Optional[int] = ..., fingerprint: _Optional[str] = ..., servers: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., shares: _Optional[_Iterable[int]] = ..., order: _Optional[int] = ..., evaluate_units: _Optional[int] = ...) -> None: ...

class RoleState(_message.Message):
    __slots__ = ("phase", "open", "stream", "completed")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    open: bool
    stream: _containers.RepeatedCompositeFieldContainer[Range]
    completed: int
    def __init__(self, phase: _Optional[_Union[Phase, _Mapping]] = ..., open: _Optional[bool] = ..., stream: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., completed: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("role", "id", "pid", "host", "address", "schema", "version", "restart_count", "role_state", "process_group", "devices", "frozen")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROLE_STATE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_GROUP_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    pid: int
    host: str
    address: str
    schema: str
    version: str
    restart_count: int
    role_state: RoleState
    process_group: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    frozen: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., schema: _Optional[str] = ..., version: _Optional[str] = ..., restart_count: _Optional[int] = ..., role_state: _Optional[_Union[RoleState, _Mapping]] = ..., process_group: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., frozen: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "heartbeat_secs", "lease_secs")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    heartbeat_secs: float
    lease_secs: float
    def __init__(self, incarnation: _Optional[int] = ..., heartbeat_secs: _Optional[float] = ..., lease_secs: _Optional[float] = ...) -> None: ...

class StateVersion(_message.Message):
    __slots__ = ("phase_id", "units", "sequence", "fingerprint")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    units: int
    sequence: int
    fingerprint: str
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., units: _Optional[int] = ..., sequence: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot_id", "held", "applied", "dropped", "num_bytes", "first_applied", "last_applied")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: int
    held: StateVersion
    applied: _containers.RepeatedCompositeFieldContainer[Range]
    dropped: _containers.RepeatedCompositeFieldContainer[Range]
    num_bytes: int
    first_applied: float
    last_applied: float
    def __init__(self, snapshot_id: _Optional[int] = ..., held: _Optional[_Union[StateVersion, _Mapping]] = ..., applied: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., num_bytes: _Optional[int] = ..., first_applied: _Optional[float] = ..., last_applied: _Optional[float] = ...) -> None: ...

class PhaseRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "after", "held", "failure", "rest_secs")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REST_SECS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    after: PhaseId
    held: StateVersion
    failure: str
    rest_secs: float
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., after: _Optional[_Union[PhaseId, _Mapping]] = ..., held: _Optional[_Union[StateVersion, _Mapping]] = ..., failure: _Optional[str] = ..., rest_secs: _Optional[float] = ...) -> None: ...

class PhaseReply(_message.Message):
    __slots__ = ("phase", "done", "probe")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    done: bool
    probe: int
    def __init__(self, phase: _Optional[_Union[Phase, _Mapping]] = ..., done: _Optional[bool] = ..., probe: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "phase_id", "known", "completed", "at_once", "wanted")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    phase_id: PhaseId
    known: int
    completed: int
    at_once: bool
    wanted: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., known: _Optional[int] = ..., completed: _Optional[int] = ..., at_once: _Optional[bool] = ..., wanted: _Optional[int] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("ranges", "final", "join_group")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    JOIN_GROUP_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    final: bool
    join_group: bool
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., final: _Optional[bool] = ..., join_group: _Optional[bool] = ...) -> None: ...

class AppliedUnit(_message.Message):
    __slots__ = ("unit", "base")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    unit: int
    base: int
    def __init__(self, unit: _Optional[int] = ..., base: _Optional[int] = ...) -> None: ...

class GroupRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "phase_id", "number", "applied", "dropped", "last", "logs", "average_secs", "serves")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_SECS_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    phase_id: PhaseId
    number: int
    applied: _containers.RepeatedCompositeFieldContainer[AppliedUnit]
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedUnit]
    last: bool
    logs: bool
    average_secs: float
    serves: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., number: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[AppliedUnit, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[DroppedUnit, _Mapping]]] = ..., last: _Optional[bool] = ..., logs: _Optional[bool] = ..., average_secs: _Optional[float] = ..., serves: _Optional[int] = ...) -> None: ...

class GroupUpdate(_message.Message):
    __slots__ = ("sequence", "units", "slots", "bases", "group", "optimizer")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    units: _containers.RepeatedScalarFieldContainer[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    bases: _containers.RepeatedScalarFieldContainer[int]
    group: _containers.RepeatedScalarFieldContainer[int]
    optimizer: bool
    def __init__(self, sequence: _Optional[int] = ..., units: _Optional[_Iterable[int]] = ..., slots: _Optional[_Iterable[int]] = ..., bases: _Optional[_Iterable[int]] = ..., group: _Optional[_Iterable[int]] = ..., optimizer: _Optional[bool] = ...) -> None: ...

class GroupReply(_message.Message):
    __slots__ = ("members", "missing", "sequence", "units", "optimizer", "is_full_sync", "applied", "dropped", "updates", "again", "over")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_SYNC_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    units: int
    optimizer: bool
    is_full_sync: bool
    applied: _containers.RepeatedCompositeFieldContainer[Range]
    dropped: _containers.RepeatedCompositeFieldContainer[Range]
    updates: _containers.RepeatedCompositeFieldContainer[GroupUpdate]
    again: bool
    over: bool
    def __init__(self, members: _Optional[_Iterable[int]] = ..., missing: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ..., units: _Optional[int] = ..., optimizer: _Optional[bool] = ..., is_full_sync: _Optional[bool] = ..., applied: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., updates: _Optional[_Iterable[_Union[GroupUpdate, _Mapping]]] = ..., again: _Optional[bool] = ..., over: _Optional[bool] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("name", "category", "start", "secs", "phase", "units")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SECS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    category: str
    start: float
    secs: float
    phase: int
    units: int
    def __init__(self, name: _Optional[str] = ..., category: _Optional[str] = ..., start: _Optional[float] = ..., secs: _Optional[float] = ..., phase: _Optional[int] = ..., units: _Optional[int] = ...) -> None: ...

class DroppedUnit(_message.Message):
    __slots__ = ("unit", "reason")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    unit: int
    reason: str
    def __init__(self, unit: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Exchange(_message.Message):
    __slots__ = ("sent", "received", "replied", "returned")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    REPLIED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    sent: float
    received: float
    replied: float
    returned: float
    def __init__(self, sent: _Optional[float] = ..., received: _Optional[float] = ..., replied: _Optional[float] = ..., returned: _Optional[float] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("role", "id", "incarnation", "phase_id", "completed", "sequence", "applied", "dropped", "staleness", "num_losses", "loss_sum", "compute_secs", "wait_secs", "compile_secs", "first_applied", "last_applied", "spans", "doing", "hold_secs", "exchange", "unit_secs", "doing_secs", "usual_secs", "sent_bytes", "received_bytes", "peak_secs", "read_secs")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOSSES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECS_FIELD_NUMBER: _ClassVar[int]
    FIRST_APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAST_APPLIED_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    UNIT_SECS_FIELD_NUMBER: _ClassVar[int]
    DOING_SECS_FIELD_NUMBER: _ClassVar[int]
    USUAL_SECS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_SECS_FIELD_NUMBER: _ClassVar[int]
    READ_SECS_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    incarnation: int
    phase_id: PhaseId
    completed: int
    sequence: int
    applied: _containers.RepeatedCompositeFieldContainer[Range]
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedUnit]
    staleness: _containers.RepeatedScalarFieldContainer[int]
    num_losses: int
    loss_sum: float
    compute_secs: float
    wait_secs: float
    compile_secs: float
    first_applied: float
    last_applied: float
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    doing: str
    hold_secs: float
    exchange: Exchange
    unit_secs: _containers.RepeatedScalarFieldContainer[float]
    doing_secs: float
    usual_secs: float
    sent_bytes: int
    received_bytes: int
    peak_secs: float
    read_secs: float
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., incarnation: _Optional[int] = ..., phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., completed: _Optional[int] = ..., sequence: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[DroppedUnit, _Mapping]]] = ..., staleness: _Optional[_Iterable[int]] = ..., num_losses: _Optional[int] = ..., loss_sum: _Optional[float] = ..., compute_secs: _Optional[float] = ..., wait_secs: _Optional[float] = ..., compile_secs: _Optional[float] = ..., first_applied: _Optional[float] = ..., last_applied: _Optional[float] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., doing: _Optional[str] = ..., hold_secs: _Optional[float] = ..., exchange: _Optional[_Union[Exchange, _Mapping]] = ..., unit_secs: _Optional[_Iterable[float]] = ..., doing_secs: _Optional[float] = ..., usual_secs: _Optional[float] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., peak_secs: _Optional[float] = ..., read_secs: _Optional[float] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("phase_id", "revoked", "done", "received", "replied")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    REPLIED_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    revoked: bool
    done: bool
    received: float
    replied: float
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., revoked: _Optional[bool] = ..., done: _Optional[bool] = ..., received: _Optional[float] = ..., replied: _Optional[float] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("phase_id", "worker", "incarnation", "units", "base", "non_finite", "restart_count", "newest", "push_only")
    PHASE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    PUSH_ONLY_FIELD_NUMBER: _ClassVar[int]
    phase_id: PhaseId
    worker: int
    incarnation: int
    units: _containers.RepeatedScalarFieldContainer[int]
    base: int
    non_finite: str
    restart_count: int
    newest: int
    push_only: bool
    def __init__(self, phase_id: _Optional[_Union[PhaseId, _Mapping]] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., units: _Optional[_Iterable[int]] = ..., base: _Optional[int] = ..., non_finite: _Optional[str] = ..., restart_count: _Optional[int] = ..., newest: _Optional[int] = ..., push_only: _Optional[bool] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("sequence", "pushes", "rate", "wanted", "weights")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    pushes: _containers.RepeatedCompositeFieldContainer[Push]
    rate: float
    wanted: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sequence: _Optional[int] = ..., pushes: _Optional[_Iterable[_Union[Push, _Mapping]]] = ..., rate: _Optional[float] = ..., wanted: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("sequence", "duplicate", "dropped", "units", "own", "fastest", "settled")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    FASTEST_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    duplicate: bool
    dropped: str
    units: int
    own: int
    fastest: int
    settled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., duplicate: _Optional[bool] = ..., dropped: _Optional[str] = ..., units: _Optional[int] = ..., own: _Optional[int] = ..., fastest: _Optional[int] = ..., settled: _Optional[_Iterable[int]] = ...) -> None: ...

class RoleEvent(_message.Message):
    __slots__ = ("role", "id", "pid", "reason", "wall", "unit", "quarantined", "restart_count", "is_refusal")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WALL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    pid: int
    reason: str
    wall: float
    unit: int
    quarantined: bool
    restart_count: int
    is_refusal: bool
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., pid: _Optional[int] = ..., reason: _Optional[str] = ..., wall: _Optional[float] = ..., unit: _Optional[int] = ..., quarantined: _Optional[bool] = ..., restart_count: _Optional[int] = ..., is_refusal: _Optional[bool] = ...) -> None: ...

class SwitchRequest(_message.Message):
    __slots__ = ("spec", "reason")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    spec: str
    reason: str
    def __init__(self, spec: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SwitchReply(_message.Message):
    __slots__ = ("spec", "before", "phase", "units", "changes")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    spec: str
    before: str
    phase: int
    units: int
    changes: bool
    def __init__(self, spec: _Optional[str] = ..., before: _Optional[str] = ..., phase: _Optional[int] = ..., units: _Optional[int] = ..., changes: _Optional[bool] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("units",)
    UNITS_FIELD_NUMBER: _ClassVar[int]
    units: int
    def __init__(self, units: _Optional[int] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("units", "figures")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    units: int
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    def __init__(self, units: _Optional[int] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("role", "id", "state", "units_per_sec", "restarts", "pid", "is_slow", "sent_bytes", "received_bytes", "host")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UNITS_PER_SEC_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    IS_SLOW_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    state: str
    units_per_sec: float
    restarts: int
    pid: int
    is_slow: bool
    sent_bytes: int
    received_bytes: int
    host: str
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., state: _Optional[str] = ..., units_per_sec: _Optional[float] = ..., restarts: _Optional[int] = ..., pid: _Optional[int] = ..., is_slow: _Optional[bool] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class HostUnits(_message.Message):
    __slots__ = ("host", "worker", "units")
    HOST_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    host: str
    worker: int
    units: int
    def __init__(self, host: _Optional[str] = ..., worker: _Optional[int] = ..., units: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("exit", "phase", "protocol", "reason", "end_units", "ordered", "is_stopping", "workload", "issued", "applied", "dropped", "outstanding", "rolled_back", "seconds", "num_switches", "stall_secs", "restarts", "checkpoint_units", "checkpoint_age_secs", "checkpoint_bytes", "figures", "evaluations", "members", "hosts")
    EXIT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    END_UNITS_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    IS_STOPPING_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    STALL_SECS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_UNITS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_SECS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    exit: str
    phase: int
    protocol: str
    reason: str
    end_units: int
    ordered: str
    is_stopping: bool
    workload: int
    issued: int
    applied: int
    dropped: int
    outstanding: int
    rolled_back: int
    seconds: float
    num_switches: int
    stall_secs: float
    restarts: int
    checkpoint_units: int
    checkpoint_age_secs: float
    checkpoint_bytes: int
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    hosts: _containers.RepeatedCompositeFieldContainer[HostUnits]
    def __init__(self, exit: _Optional[str] = ..., phase: _Optional[int] = ..., protocol: _Optional[str] = ..., reason: _Optional[str] = ..., end_units: _Optional[int] = ..., ordered: _Optional[str] = ..., is_stopping: _Optional[bool] = ..., workload: _Optional[int] = ..., issued: _Optional[int] = ..., applied: _Optional[int] = ..., dropped: _Optional[int] = ..., outstanding: _Optional[int] = ..., rolled_back: _Optional[int] = ..., seconds: _Optional[float] = ..., num_switches: _Optional[int] = ..., stall_secs: _Optional[float] = ..., restarts: _Optional[int] = ..., checkpoint_units: _Optional[int] = ..., checkpoint_age_secs: _Optional[float] = ..., checkpoint_bytes: _Optional[int] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., hosts: _Optional[_Iterable[_Union[HostUnits, _Mapping]]] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("host", "index", "address", "slots", "version", "config_digest", "session", "num_hosts")
    HOST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUM_HOSTS_FIELD_NUMBER: _ClassVar[int]
    host: str
    index: int
    address: str
    slots: int
    version: str
    config_digest: str
    session: str
    num_hosts: int
    def __init__(self, host: _Optional[str] = ..., index: _Optional[int] = ..., address: _Optional[str] = ..., slots: _Optional[int] = ..., version: _Optional[str] = ..., config_digest: _Optional[str] = ..., session: _Optional[str] = ..., num_hosts: _Optional[int] = ...) -> None: ...

class AgentWelcome(_message.Message):
    __slots__ = ("lease_secs",)
    LEASE_SECS_FIELD_NUMBER: _ClassVar[int]
    lease_secs: float
    def __init__(self, lease_secs: _Optional[float] = ...) -> None: ...

class AgentReport(_message.Message):
    __slots__ = ("index", "session", "first", "events", "seen", "hold_secs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECS_FIELD_NUMBER: _ClassVar[int]
    index: int
    session: str
    first: int
    events: _containers.RepeatedScalarFieldContainer[str]
    seen: int
    hold_secs: float
    def __init__(self, index: _Optional[int] = ..., session: _Optional[str] = ..., first: _Optional[int] = ..., events: _Optional[_Iterable[str]] = ..., seen: _Optional[int] = ..., hold_secs: _Optional[float] = ...) -> None: ...

class AgentReply(_message.Message):
    __slots__ = ("heard", "first", "orders")
    HEARD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    heard: int
    first: int
    orders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, heard: _Optional[int] = ..., first: _Optional[int] = ..., orders: _Optional[_Iterable[str]] = ...) -> None: ...
