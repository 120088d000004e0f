"""Messages and methods from a descriptor set, in place of generated code. docs/languages.md says how to generate it instead."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Stubs:
    def __init__(self, path):
        self._pool = descriptor_pool.DescriptorPool()
        with open(path, "rb") as file:
            for described in descriptor_pb2.FileDescriptorSet.FromString(file.read()).file:
                self._pool.Add(described)
        self._factory = message_factory.MessageFactory(self._pool)

    def message(self, name):
        """The class of a message."""
        return self._factory.GetPrototype(self._pool.FindMessageTypeByName(name))

    def method(self, channel, service, name):
        """A function that calls a method."""
        method = self._pool.FindServiceByName(service).methods_by_name[name]
        return channel.unary_unary(
            "/%s/%s" % (service, name),
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=self.message(method.output_type.full_name).FromString,
        )

    def reason(self, error):
        """Why idemd, or a guard, refused a call: the word of docs/errors.md. None where the error is not of theirs."""
        for name, value in error.trailing_metadata() or ():
            if name != "grpc-status-details-bin":
                continue
            for detail in self.message("google.rpc.Status").FromString(value).details:
                if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                    info = self.message("google.rpc.ErrorInfo").FromString(detail.value)
                    if info.domain == "idem.v1":
                        return info.reason
        return None
