#include "tests/support/certificates.h"

#include <cstdlib>

namespace weightfs {

Status make_certificates(const std::string& dir) {
  auto command = "cd '" + dir +
                 "' && exec >openssl.log 2>&1 && "
                 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=test-ca "
                 "-keyout ca.key -out ca.pem && "
                 "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=127.0.0.1 -keyout key.pem "
                 "-out request.pem && printf 'subjectAltName=IP:127.0.0.1' >names && "
                 "openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile names "
                 "-out cert.pem";
  if (std::system(command.c_str()) != 0) return {Code::kUnavailable, "openssl cannot make certificates"};
  return {};
}

}  // namespace weightfs
